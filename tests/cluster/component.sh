#!/usr/bin/env bash
# component.sh STATE stop|kill|start NAME: ends or starts one process of a running cluster.
# NAME: etcd, apiserver, controller-manager, scheduler, containerd, kubelet, proxy. `kill` is kill -9; `stop` asks first, for 10 s.
set -euo pipefail
source "$(dirname "$0")/processes.sh"
state=${1:?} verb=${2:?} name=${3:?}
[ -f "$state/run/$name.sh" ] || { echo "no component $name in $state" >&2; exit 2; }
case $verb in
    start) start "$state" "$name" ;;
    stop) stop "$state" "$name" 10 ;;
    kill) stop "$state" "$name" 0 ;;
    *) echo "stop, kill or start, not $verb" >&2; exit 2 ;;
esac
