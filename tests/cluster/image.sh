#!/usr/bin/env bash
# image.sh STATE NAME:TAG ENTRYPOINT FILE[:DESTINATION]...: makes an image of one layer from files and the shared libraries
# they need, and imports it into the cluster's containerd. ENTRYPOINT is a JSON list. Env: USER_ID (65532).
# Files are stripped of symbols. The same content gives the same layer; the tag is in the configuration, so that two tags
# are two images.
set -euo pipefail
state=${1:?} name=${2:?} entrypoint=${3:?}
shift 3
user=${USER_ID:-65532}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{tmp,etc/ssl/certs} "$work/image"
chmod 1777 "$root/tmp"
printf 'root:x:0:0::/:\nnonroot:x:65532:65532::/:\n' >"$root/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
[ ! -f /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
for file in "$@"; do
    source=${file%%:*} destination=${file#*:}
    [ "$destination" != "$file" ] || destination=/usr/bin/$(basename "$source")
    mkdir -p "$root$(dirname "$destination")"
    cp -L "$source" "$root$destination"
    strip "$root$destination" 2>/dev/null || true
    # The loader and every library, at the paths where the loader looks for them.
    for library in $(ldd "$source" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
done
tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/image/layer.tar" .
layer=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
case $(uname -m) in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$(uname -m) ;; esac
cat >"$work/image/config.json" <<JSON
{"architecture": "$architecture", "os": "linux",
 "config": {"User": "$user:$user", "Entrypoint": $entrypoint, "Env": ["PATH=/usr/bin:/bin"], "Labels": {"tag": "${name##*:}"}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
JSON
echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"layer.tar\"]}]" >"$work/image/manifest.json"
tar -C "$work/image" -cf "$work/image.tar" manifest.json config.json layer.tar
ctr -a "$state/run/containerd.sock" -n k8s.io images import "$work/image.tar" >&2
