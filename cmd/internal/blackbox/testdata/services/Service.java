import com.mongodb.ConnectionString;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.function.Function;
import javax.sql.DataSource;
import org.bson.Document;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.annotation.EnableTransactionManagement;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * A service for the tests: it writes with the writers of deploy/writers, and receives with deploy/inbox.
 *
 * <p>POST /write and POST /receive take a form. The answer is 200, or 409 with the error if the transaction was rolled
 * back. It prints its port, and ends with its standard input.
 */
public class Service {
    private static final Map<String, AnnotationConfigApplicationContext> contexts = new ConcurrentHashMap<>();
    private static final Map<String, MongoClient> clients = new ConcurrentHashMap<>();

    public static void main(String[] args) throws IOException {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        var threads = Executors.newCachedThreadPool();
        server.setExecutor(threads);
        server.createContext("/write", x -> answer(x, Service::write));
        server.createContext("/receive", x -> answer(x, Service::receive));
        Path gaps = Path.of(System.getenv("RECEIPTS") + ".gaps");
        server.createContext("/receipt", new Receipts(Path.of(System.getenv("RECEIPTS")), (id, chain) -> note(gaps, id + " " + chain + "\n"))
            .handler((x, body) -> new String(body, UTF_8).equals("refuse") ? 409 : 204));
        server.start();
        System.out.println(server.getAddress().getPort());
        System.in.readAllBytes();
        clients.values().forEach(MongoClient::close);
        server.stop(0);
        threads.shutdown();
    }

    static void note(Path file, String line) {
        try {
            Files.writeString(file, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    interface Action {
        Object of(Map<String, List<String>> form) throws Exception;
    }

    static void answer(HttpExchange x, Action action) throws IOException {
        int status = 200;
        String text;
        try {
            text = String.valueOf(action.of(form(new String(x.getRequestBody().readAllBytes(), UTF_8))));
        } catch (Exception e) {
            status = 409;
            text = e.toString();
        }
        byte[] body = text.getBytes(UTF_8);
        x.sendResponseHeaders(status, body.length);
        x.getResponseBody().write(body);
        x.close();
    }

    static Map<String, List<String>> form(String body) {
        var form = new HashMap<String, List<String>>();
        for (String pair : body.split("&")) {
            String[] kv = pair.split("=", 2);
            form.computeIfAbsent(URLDecoder.decode(kv[0], UTF_8), k -> new ArrayList<>()).add(URLDecoder.decode(kv[1], UTF_8));
        }
        return form;
    }

    static Object write(Map<String, List<String>> form) throws Exception {
        Function<String, String> get = key -> form.containsKey(key) ? form.get(key).get(0) : null;
        String url = get.apply("url"), order = get.apply("order"), status = get.apply("status"), traceparent = get.apply("traceparent");
        var events = events(form);
        if (get.apply("writer").equals("mongo")) {
            OutboxMongo.save(client(url), database(url), order, status, events, traceparent);
        } else if (get.apply("writer").equals("jdbc")) {
            OutboxJdbc.save(new DriverManagerDataSource(url), isPostgres(url) ? OutboxJdbc.POSTGRES : OutboxJdbc.MYSQL, order, status, events, traceparent);
        } else if (isPostgres(url)) {
            context(url).getBean(OutboxSpring.class).save(order, status, events, traceparent);
        } else {
            context(url).getBean(OutboxSpringMySQL.class).save(order, status, events, traceparent);
        }
        return "";
    }

    static boolean isPostgres(String url) {
        return url.startsWith("jdbc:postgresql:");
    }

    static MongoClient client(String url) {
        return clients.computeIfAbsent(url, MongoClients::create);
    }

    static String database(String url) {
        return new ConnectionString(url).getDatabase();
    }

    /** The events of the form, and then an error if it asks for one. */
    static Iterable<Map.Entry<String, String>> events(Map<String, List<String>> form) {
        List<String> types = form.get("type"), payloads = form.get("payload");
        return () -> new Iterator<>() {
            int i;

            public boolean hasNext() {
                return i < types.size() || form.containsKey("fail");
            }

            public Map.Entry<String, String> next() {
                if (i == types.size()) {
                    throw new IllegalStateException("the service fails after its rows");
                }
                return Map.entry(types.get(i), payloads.get(i++));
            }
        };
    }

    @EnableTransactionManagement(proxyTargetClass = true)
    static class Transactions {}

    static AnnotationConfigApplicationContext context(String url) {
        return contexts.computeIfAbsent(url, u -> {
            var context = new AnnotationConfigApplicationContext();
            context.registerBean(DataSource.class, () -> new DriverManagerDataSource(u));
            context.registerBean(JdbcTemplate.class, () -> new JdbcTemplate(context.getBean(DataSource.class)));
            context.registerBean(DataSourceTransactionManager.class, () -> new DataSourceTransactionManager(context.getBean(DataSource.class)));
            context.register(Transactions.class, OutboxSpring.class, OutboxSpringMySQL.class);
            context.refresh();
            return context;
        });
    }

    static Object receive(Map<String, List<String>> form) throws Exception {
        String url = form.get("url").get(0), kind = form.get("kind").get(0), id = form.get("id").get(0);
        Runnable end = () -> {
            if (form.containsKey("fail")) {
                throw new IllegalStateException("the service fails after its rows");
            }
        };
        if (form.get("writer").get(0).equals("mongo")) {
            return InboxMongo.receive(client(url), database(url), kind, id, session -> {
                client(url).getDatabase(database(url)).getCollection("effects").insertOne(session, new Document("kind", kind).append("id", id));
                end.run();
            });
        }
        return InboxJdbc.receive(new DriverManagerDataSource(url), isPostgres(url) ? InboxJdbc.POSTGRES : InboxJdbc.MYSQL, kind, id, c -> {
            try (var insert = c.prepareStatement("INSERT INTO effects (kind, id) VALUES (?, ?)")) {
                insert.setString(1, kind);
                insert.setString(2, id);
                insert.executeUpdate();
            }
            end.run();
        });
    }
}
