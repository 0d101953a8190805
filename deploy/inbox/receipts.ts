// Appends a receipt of each message before the receiver answers 2xx: node:http, and what builds on it.
import { createHash } from "node:crypto";
import { openSync, writeSync } from "node:fs";
import type { IncomingMessage, RequestListener } from "node:http";
import { buffer } from "node:stream/consumers";
import { Chains } from "./chain.js";

// receipts returns a listener. receive gets the body and returns the status of the answer. gap gets the id and the chain of a
// message before which another one is missing. A request without a webhook-id, for example a health check, is no message.
export function receipts(
  path: string,
  receive: (request: IncomingMessage, body: Buffer) => Promise<number>,
  gap?: (id: string, chain: string) => void,
): RequestListener {
  const chains = new Chains();
  const file = openSync(path, "a");
  return (request, response) => {
    (async () => {
      const body = await buffer(request);
      const status = await receive(request, body);
      const header = (name: string) => String(request.headers[name] ?? "");
      const [id, chain] = [header("webhook-id"), header("sluicebox-chain")];
      if (id && status >= 200 && status < 300) {
        addReceipt(file, id, header("sluicebox-group"), chain, body);
        if (gap && chains.accept(chain) === "gap") gap(id, chain);
      }
      response.writeHead(status).end();
    })().catch(() => response.writeHead(500).end()); // the relay sends the message again
  };
}

// addReceipt appends a receipt. Call it once for each message of a batch.
export function addReceipt(file: number, id: string, group: string, chain: string, body: Buffer): void {
  const sum = createHash("sha256").update(body).digest("hex");
  writeSync(file, JSON.stringify({ id, group, chain, at: new Date().toISOString(), sum }) + "\n"); // one write: receivers may share the file
}
