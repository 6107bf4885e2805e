#!/usr/bin/env bash
# pointsman-image.sh STATE BINARY: the image of a program, under two names that differ by their tag alone (so that rolling
# from one to the other can be tried). Prints both. Tags tell the content: an image that is there already is not made again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
state=${1:?} binary=${2:?}
content=$(sha256sum "$binary" | cut -c1-12)
exec 9>"$state/run/image.lock"
flock 9
for tag in "$content-a" "$content-b"; do
    name=pointsman.test/pointsman:$tag
    if ! ctr -a "$state/run/containerd.sock" -n k8s.io images ls -q | grep -qxF "$name"; then
        bash "$here/image.sh" "$state" "$name" '["/usr/bin/pointsman"]' "$binary:/usr/bin/pointsman"
    fi
    echo "$name"
done
