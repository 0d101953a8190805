# shellcheck shell=bash
# Runs of servers: their folders, variables, beginning and end; servers.sh reads this file.

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
    vars=$(given "$name" BIN || [ ! -d "$(folder "$name")" ] || "programs_$name" "$(folder "$name")")
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
