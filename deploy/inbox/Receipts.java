import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.util.HexFormat;
import java.util.function.BiConsumer;

/** Appends a receipt of each message before the receiver answers 2xx: the JDK's HTTP server. */
public final class Receipts {
    private final OutputStream file;
    private final Chains chains = new Chains();
    private final BiConsumer<String, String> gap;

    /** Calls gap with the id and the chain of a message before which another one is missing. */
    public Receipts(Path path, BiConsumer<String, String> gap) throws IOException {
        this.gap = gap;
        file = Files.newOutputStream(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** Gets a message and returns the status of the answer. */
    public interface Receiver {
        int receive(HttpExchange exchange, byte[] body) throws IOException;
    }

    /** A request without a webhook-id, for example a health check, is no message. */
    public HttpHandler handler(Receiver next) {
        return exchange -> {
            try (exchange) { // without an answer the relay sends the message again
                byte[] body = exchange.getRequestBody().readAllBytes();
                int status = next.receive(exchange, body);
                var headers = exchange.getRequestHeaders();
                String id = headers.getFirst("webhook-id"), chain = headers.getFirst("Sluicebox-Chain");
                if (id != null && status / 100 == 2) {
                    add(id, headers.getFirst("Sluicebox-Group"), chain, body);
                    if (chains.accept(chain) == Chains.Verdict.GAP) gap.accept(id, chain);
                }
                exchange.sendResponseHeaders(status, -1);
            }
        };
    }

    /** Appends a receipt. Call it once for each message of a batch, and from any other server. */
    public void add(String id, String group, String chain, byte[] body) throws IOException {
        String line = "{\"id\":" + quote(id) + ",\"group\":" + quote(group == null ? "" : group)
            + ",\"chain\":" + quote(chain == null ? "" : chain) + ",\"at\":\"" + Instant.now() + "\",\"sum\":\"" + HexFormat.of().formatHex(sha256().digest(body)) + "\"}\n";
        synchronized (file) {
            file.write(line.getBytes(StandardCharsets.UTF_8)); // one write, so that receivers may share the file
        }
    }

    // A header's value has no control characters.
    private static String quote(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // every JDK has it
        }
    }
}
