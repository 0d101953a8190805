#!/bin/bash
# Checks what release.sh made: sums, programs, the same bytes in a second run, the SBOM, and the
# Debian package, which it installs, changes, upgrades and purges in a root folder of its own.
# The last needs root on Debian, and is skipped elsewhere.
set -euo pipefail
shopt -s inherit_errexit
export LC_ALL=C
cd "$(dirname "$0")/../.."
out=$PWD/bin/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "check: $*" >&2
  exit 1
}

(cd "$out" && sha256sum --quiet -c SHA256SUMS)
(cd "$out" && diff <(cut -c 67- SHA256SUMS | sort) <(find . -type f ! -name SHA256SUMS -printf '%P\n' | sort)) || fail "SHA256SUMS has not all files"

targets=()
for file in "$out"/*.tar.gz "$out"/*.zip; do
  [ -e "$file" ] || continue
  name=$(basename "$file")
  name=${name%.tar.gz} name=${name%.zip}
  arch=${name##*_} os=${name%_*}
  os=${os##*_}
  targets+=("$os/$arch")
  case $file in *.zip) unzip -q -d "$work" "$file" ;; *) tar -x -C "$work" -f "$file" ;; esac
  for part in README.md LICENSE CHANGELOG.md deploy/operating.md deploy/prometheus/rules.yml; do
    [ -s "$work/$name/$part" ] || fail "$name has no $part"
  done
  program=$(ls "$work/$name"/sluicebox{,.exe} 2>/dev/null || :)
  go version -m "$program" | grep -x "	build	GOOS=$os" >/dev/null || fail "the program of $name is not for $os"
  go version -m "$program" | grep -x "	build	GOARCH=$arch" >/dev/null || fail "the program of $name is not for $arch"
  if grep -qaF "$PWD" "$program"; then fail "the program of $name has paths of this machine"; fi
  if [ "$os/$arch" = "$(go env GOHOSTOS)/$(go env GOHOSTARCH)" ]; then
    "$program" version | grep -qF "$(echo "${name#sluicebox_}" | cut -d _ -f 1)" || fail "$name says another version"
  fi
done
[ ${#targets[@]} -gt 0 ] || fail "no archives: run release.sh first"
echo "archives: ${targets[*]}"

grep -o '"bomFormat": "CycloneDX"' "$out"/*.cdx.json >/dev/null || fail "the SBOM is not CycloneDX"
for module in github.com/jackc/pgx/v5 github.com/go-mysql-org/go-mysql go.mongodb.org/mongo-driver/v2; do
  grep -qF "\"purl\": \"pkg:golang/$module@" "$out"/*.cdx.json || fail "the SBOM lacks $module"
done
echo "SBOM: $(grep -c '"type": "library"' "$out"/*.cdx.json) modules"

mv "$out" "$work/first"
deploy/release/release.sh "${targets[@]}"
diff "$work/first/SHA256SUMS" "$out/SHA256SUMS" || fail "a second run makes other bytes"
echo "a second run makes the same bytes"

deb=$(ls "$out"/*_"$(dpkg --print-architecture 2>/dev/null || echo none)".deb 2>/dev/null || :)
if [ -z "$deb" ] || [ "$(id -u)" != 0 ]; then
  echo "skipped: the package, which needs root on Debian, and its architecture"
  exit 0
fi
[[ $(dpkg-deb -f "$deb" Maintainer) == ?*' <'?*@?*'>' ]] || fail "the package has the maintainer $(dpkg-deb -f "$deb" Maintainer)"
if command -v lintian >/dev/null; then lintian --fail-on error "$deb"; else echo "skipped: lintian, which is not there"; fi
unshare --mount deploy/release/install.sh "$deb"
