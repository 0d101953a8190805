#!/bin/bash
# Makes the files of a release in bin/release from the commit that is checked out:
#
#   sluicebox_VERSION_OS_ARCH.tar.gz, .zip   the program, deploy and the licence
#   sluicebox_VERSION_ARCH.deb               the Debian package
#   sluicebox_VERSION.cdx.json               the modules of the program, as CycloneDX
#   SHA256SUMS                               of all of them
#
#   deploy/release/release.sh [OS/ARCH…]     default: all of the six below
#
# The maintainer of the package is who made the commit, or DEBFULLNAME and DEBEMAIL if they are set.
# The same commit and the same Go make the same bytes, wherever it is: times are those of the commit,
# owners are root, and no path of this machine is in the program. check.sh checks the result.
set -euo pipefail
shopt -s inherit_errexit
export LC_ALL=C TZ=UTC CGO_ENABLED=0
umask 022
cd "$(dirname "$0")/../.."

targets=("$@")
[ $# -gt 0 ] || targets=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64)
version=$(git describe --tags --always --dirty)
version=${version#v}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH # dpkg-deb reads it
maintainer="${DEBFULLNAME:-$(git log -1 --format=%cn)} <${DEBEMAIL:-$(git log -1 --format=%ce)}>"
out=$PWD/bin/release
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
rm -rf "$out"
mkdir -p "$out"

# put MODE FROM TO: copies a file.
put() { install -D -m "$1" "$2" "$3"; }

# same FOLDER: gives all files of a folder the time of the commit.
same() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

# archive OS ARCH PROGRAM
archive() {
  local name=sluicebox_${version}_$1_$2 suffix=
  [ "$1" != windows ] || suffix=.exe
  mkdir "$tree/$name"
  git archive HEAD README.md CHANGELOG.md SECURITY.md LICENSE deploy ':!deploy/release' ':!deploy/console' | tar -x -C "$tree/$name"
  put 755 "$3" "$tree/$name/sluicebox$suffix"
  same "$tree/$name"
  if [ "$1" = windows ]; then
    (cd "$tree" && find "$name" -type f | sort | zip -q -X "$out/$name.zip" -@)
  else
    tar -C "$tree" --sort=name --owner=0 --group=0 --numeric-owner --format=ustar -c "$name" | gzip -n >"$out/$name.tar.gz"
  fi
  rm -rf "${tree:?}/$name"
}

# deb ARCH PROGRAM
deb() {
  local root=$tree/deb file
  put 755 "$2" "$root/usr/bin/sluicebox"
  # The package has a user of its own, so a reload can read the file.
  put 644 <(sed -e '1,/^$/d' -e '/^LoadCredential=/d' -e '/^# The copies of LoadCredential/,/^# service itself/d' -e '/^# On SQLite/,/^#   ReadWritePaths/d' \
    -e "s|/usr/local/bin/|/usr/bin/|; s|\${CREDENTIALS_DIRECTORY}/|/etc/sluicebox/|; s|^DynamicUser=yes|User=sluicebox|" deploy/sluicebox.service) \
    "$root/usr/lib/systemd/system/sluicebox.service"
  put 640 deploy/release/debian/sluicebox.yaml "$root/etc/sluicebox/sluicebox.yaml"
  put 644 deploy/release/debian/copyright "$root/usr/share/doc/sluicebox/copyright"
  for file in deploy/{postgres,mysql,mongo}/* deploy/prometheus/rules.yml deploy/grafana/sluicebox.json; do
    put 644 "$file" "$root/usr/share/doc/sluicebox/examples/${file#deploy/}"
  done
  mkdir -p "$root/DEBIAN"
  sed "s/@VERSION@/$(debversion)/; s/@ARCH@/$1/; s/@SIZE@/$(du -ks "$root" | cut -f 1)/; /^Architecture:/r /dev/stdin" \
    deploy/release/debian/control <<<"Maintainer: $maintainer" >"$root/DEBIAN/control"
  echo /etc/sluicebox/sluicebox.yaml >"$root/DEBIAN/conffiles"
  for file in postinst prerm postrm; do put 755 deploy/release/debian/$file "$root/DEBIAN/$file"; done
  (cd "$root" && find usr -type f | sort | xargs md5sum >DEBIAN/md5sums)
  chmod 644 "$root"/DEBIAN/{control,conffiles,md5sums}
  same "$root"
  dpkg-deb --root-owner-group -Zxz -z1 --build "$root" "$out/sluicebox_$(debversion)_$1.deb" >/dev/null
  rm -rf "$root"
}

# debversion: Debian sorts 1.0.0~rc.1 before 1.0.0, and 1.0.0+5.gabc behind it. Versions begin with a digit.
debversion() {
  case $version in
  [0-9]*.*) echo "$version" | sed -E 's/-([0-9]+)-g/+\1.g/; s/-/~/; s/-/./g' ;;
  *) echo "0~${version//-/.}" ;;
  esac
}

for target in "${targets[@]}"; do
  os=${target%/*} arch=${target#*/}
  GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=true -ldflags "-s -w -X main.version=v$version" -o "$tree/program" ./cmd/sluicebox
  archive "$os" "$arch" "$tree/program"
  if [ "$os" = linux ]; then deb "$arch" "$tree/program"; fi
done
${CYCLONEDX:-go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0} app -json -licenses -noserial -main cmd/sluicebox -output "$out/sluicebox_$version.cdx.json" .
sed -i "s/\"timestamp\": \"[^\"]*\"/\"timestamp\": \"$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)\"/" "$out"/*.cdx.json
(cd "$out" && sha256sum -- * >SHA256SUMS)
