// Appends a receipt of each message before the receiver answers 2xx: node:http, and what builds on it.
import { createHash } from "node:crypto";
import { openSync, writeSync } from "node:fs";
import type { IncomingMessage, RequestListener } from "node:http";
import { buffer } from "node:stream/consumers";

// receipts returns a listener. receive gets the body and returns the status of the answer.
export function receipts(path: string, receive: (request: IncomingMessage, body: Buffer) => Promise<number>): RequestListener {
  const file = openSync(path, "a");
  return (request, response) => {
    (async () => {
      const body = await buffer(request);
      const status = await receive(request, body);
      if (status >= 200 && status < 300) addReceipt(file, String(request.headers["webhook-id"]), String(request.headers["sluicebox-group"] ?? ""), body);
      response.writeHead(status).end();
    })().catch(() => response.writeHead(500).end()); // the relay sends the message again
  };
}

// addReceipt appends a receipt. Call it once for each message of a batch.
export function addReceipt(file: number, id: string, group: string, body: Buffer): void {
  const sum = createHash("sha256").update(body).digest("hex");
  writeSync(file, JSON.stringify({ id, group, at: new Date().toISOString(), sum }) + "\n"); // one write: receivers may share the file
}
