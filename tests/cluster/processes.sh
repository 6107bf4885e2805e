# Sourced by the scripts beside it: where a cluster's things are, and how its processes are started and stopped.
# A process is known by its pid and start time, so that a number used again is never taken for it.

cache=${POINTSMAN_CACHE:-$HOME/.cache/pointsman}
default_state=$cache/cluster/state
# Where the machine's one cluster tells its state folder.
registry=/run/pointsman-cluster
bridge=pointsman0
cgroup=pointsman
pod_network=10.88.0.0/16
pod_gateway=10.88.0.1
service_network=10.96.0.0/16
api_service=10.96.0.1
dns_service=10.96.0.10
components=(etcd apiserver controller-manager scheduler containerd kubelet proxy)

# identity PID: the pid with its start time; fails when there is no such process.
identity() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The second field may hold spaces; it ends with the last parenthesis.
    set -- "$1" ${stat##*) }
    [ "$2" != Z ] || return 1
    echo "$1 ${21}"
}

# is_running STATE NAME
is_running() {
    local recorded
    recorded=$(cat "$1/run/$2.pid" 2>/dev/null) || return 1
    [ "$(identity "${recorded%% *}")" = "$recorded" ]
}

# start STATE NAME: runs what STATE/run/NAME.sh says, in a session of its own; its output is appended to STATE/log/NAME.log.
start() {
    is_running "$1" "$2" && return
    # The lock's descriptor must not outlive this script in a component.
    setsid bash "$1/run/$2.sh" >>"$1/log/$2.log" 2>&1 </dev/null 8>&- 9>&- &
    identity $! >"$1/run/$2.pid"
}

# stop STATE NAME SECONDS: asks it to end, and kills it after so long; 0 kills at once.
stop() {
    local state=$1 name=$2 tenths=$(($3 * 10)) pid
    is_running "$state" "$name" || return 0
    pid=$(cut -d' ' -f1 "$state/run/$name.pid")
    [ "$tenths" -eq 0 ] || kill "$pid" 2>/dev/null || true
    while [ "$tenths" -gt 0 ] && is_running "$state" "$name"; do
        sleep 0.1
        tenths=$((tenths - 1))
    done
    kill -9 "$pid" 2>/dev/null || true
    while is_running "$state" "$name"; do sleep 0.05; done
    rm -f "$state/run/$name.pid"
}

# wait_for WHAT SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { echo "waited in vain for $what" >&2; return 1; }
        sleep 0.1
    done
}
