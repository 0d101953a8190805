# shellcheck shell=bash
# How servers start; servers.sh reads this file.

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
