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
# NAME: pg15 pg18 mysql mariadb mongo pgbouncer pymongo nats nats29 kafka redis
# rabbitmq java python node browser (default: all of these), and by hand prometheus, debezium and
# zeebe. debezium needs a JDK 17, and zeebe a JDK 21.
# pgbouncer and those behind it are only installed: tests run them. java, python and node are
# the libraries of deploy/writers, and skipped without a runtime. To use long-running
# servers:
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
# (5927). PGBOUNCER and REDIS have _BIN and _LIB; NATS, NATS29 and RABBITMQ have _BIN; KAFKA_BIN,
# DEBEZIUM_BIN and ZEEBE_BIN are the directories of jars, and PYMONGO_BIN is added to PYTHONPATH. JAVA_BIN, PYTHON_BIN and NODE_BIN
# are the directories of their libraries, and BROWSER_BIN has the program browser. All database servers except MONGO also have:
#   SLUICEBOX_TEST_MYSQL_DATA     data directory to copy for each new server; without
#                                 it one is created each time (mysqld
#                                 --initialize-insecure, mariadb-install-db, initdb)
#
# The servers are in recipes.sh.
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

for part in recipes start fetch run; do
  # shellcheck source=/dev/null
  . "$(dirname "$0")/$part.sh"
done

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
  for name; do [[ " ${all[*]} ${byhand[*]} " == *" $name "* ]] || die "no server is named $name: ${all[*]} ${byhand[*]}"; done
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
