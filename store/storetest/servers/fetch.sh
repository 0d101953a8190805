# shellcheck shell=bash
# How programs are fetched; servers.sh reads this file.

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

# maven makes sure that mvn and java are there.
maven() {
  if command -v mvn >/dev/null && command -v java >/dev/null; then return; fi
  if [ "$uid" != 0 ] || ! command -v apt-get >/dev/null; then
    die "mvn and java are needed: install the Debian packages maven and default-jre-headless"
  fi
  say "installing maven and a Java runtime"
  apt-get -qq -o DPkg::Lock::Timeout=300 update >&2 || :
  apt-get -qq -o DPkg::Lock::Timeout=300 -y --no-install-recommends install maven default-jre-headless >&2
}

# jars DIR POM SUMS OPTION…: copies the dependencies of a pom into DIR. SUMS has the hash of each:
# one that is missing, other or not listed is refused.
jars() {
  local dir=$1 pom=$2 sums=$3
  shift 3
  mkdir -p "$dir"
  mvn -q -B -f "$pom" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DoutputDirectory="$(realpath "$dir")" "$@" >&2
  (cd "$dir" && sha256sum --quiet -c -) <"$sums" >&2 || die "jars in $dir are not those of $sums"
  (cd "$dir" && ls -- *.jar) | cmp -s - <(awk '{print $2}' "$sums") || die "$dir has other jars than $sums"
}

# folder NAME: prints the directory of its programs. The name contains a hash of the
# recipe and its lock files, so that other versions of this script use other directories.
folder() {
  local locks=()
  if declare -F "locks_$1" >/dev/null; then read -ra locks <<<"$("locks_$1")"; fi
  echo "$cache/$1-$( (declare -f "fetch_$1" && [ ${#locks[@]} = 0 ] || cat "${locks[@]}") | sha256sum | cut -c1-8)"
}

# runtime NAME: is the runtime of these libraries there? Root gets it from apt. Without it
# the tests of the language are skipped, or fail with CI=true.
runtime() {
  local programs packages program missing=()
  if ! declare -F "needs_$1" >/dev/null; then return; fi
  IFS=: read -r programs packages <<<"$("needs_$1")"
  for program in $programs; do command -v "$program" >/dev/null || missing+=("$program"); done
  if [ ${#missing[@]} = 0 ]; then return; fi
  if [ "$uid" = 0 ] && command -v apt-get >/dev/null; then
    say "installing$packages for the tests of $1"
    apt-get -qq -o DPkg::Lock::Timeout=300 update >&2 || :
    # shellcheck disable=SC2086
    if apt-get -qq -o DPkg::Lock::Timeout=300 -y --no-install-recommends install $packages >&2; then return; fi
  fi
  say "without ${missing[*]} the tests of $1 are skipped, or fail with CI=true: install$packages"
  return 1
}

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
    if given "$name" BIN || [ -d "$dir" ] || ! runtime "$name"; then continue; fi
    say "fetching $name"
    rm -rf "$dir.new"
    "fetch_$name" "$dir.new"
    mv "$dir.new" "$dir" # whole or not at all
  done
}
