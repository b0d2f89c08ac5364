# What one node does, below the settings of this run. Node 0 starts Ray, waits for the others, trains and ends Ray; the
# others join it and leave when it is gone. Only the Ray that is started here is stopped.

usage="usage: bash $0 HEAD RANK   (HEAD: name or address of the head; RANK: 0 there, 1, 2, ... on the others)"
head=${1:?"$usage"}
rank=${2:-${SLURM_NODEID:?"$usage"}}
port=${RAY_PORT:-6379}
patience=${RAY_PATIENCE:-900} # seconds until all nodes must be there
address=$(getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }')
address=${address:-$head}
if [[ $rank -eq 0 && $address == 127.* ]]; then # what a machine calls itself is no use to the others
  address=$(hostname -I | awk '{ print $1 }')
fi
export RAY_ADDRESS="$address:$port"
# Who can reach Ray's port may run code: with a token that only this run's owner can read, nobody else can.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$folder/ray_token"
# A node that leaves has nothing to hand over; by itself Ray would try that for 30 seconds.
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
# Ray counts a machine's CPUs, of which a job may have few; verl waits for ever when Ray has too few of them to give.
cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
resources=(--num-gpus="$gpus" --num-cpus="$((cpus > least_cpus ? cpus : least_cpus))" --disable-usage-stats)

say() { echo "node $rank ($(hostname)): $*" >&2; }

answers() { (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; }

stop_ray() {
  kill "$ray_pid" 2>/dev/null || true
  wait "$ray_pid" 2>/dev/null || true
}

if [ "$rank" -eq 0 ]; then
  if answers; then
    say "port $port is in use here; RAY_PORT=6380 (on every node) takes another"
    exit 1
  fi
  if [ ! -s "$RAY_AUTH_TOKEN_PATH" ]; then
    (umask 077 && "$python" -c 'import secrets; print(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH.part")
    mv "$RAY_AUTH_TOKEN_PATH.part" "$RAY_AUTH_TOKEN_PATH"
  fi
  "$python" -m ray.scripts.scripts start --head --node-ip-address="$address" --port="$port" --include-dashboard=false \
    "${resources[@]}" --block >"$folder/ray_node_$rank.log" 2>&1 &
  ray_pid=$!
  trap stop_ray EXIT
  trap 'exit 143' TERM
  for ((waited = 0; waited < 120; waited++)); do
    answers && break
    kill -0 "$ray_pid" 2>/dev/null || break
    sleep 1
  done
  if ! answers; then
    say "Ray did not start: $folder/ray_node_$rank.log"
    exit 1
  fi
  "$python" "$ray_nodes" "$RAY_ADDRESS" "$nodes" "$gpus" "$patience" || {
    say "not all of the $nodes nodes with $gpus GPUs are here; each runs: bash $0 $head RANK"
    exit 1
  }
  train
else
  for ((waited = 0; waited < patience; waited++)); do
    [ -s "$RAY_AUTH_TOKEN_PATH" ] && answers && break
    sleep 1
  done
  if ! answers; then
    say "no Ray at $RAY_ADDRESS after $patience s; the head runs: bash $0 $head 0"
    exit 1
  fi
  "$python" -m ray.scripts.scripts start --address="$RAY_ADDRESS" "${resources[@]}" --block >"$folder/ray_node_$rank.log" 2>&1 &
  ray_pid=$!
  trap stop_ray EXIT
  trap 'exit 143' TERM
  say "joined $RAY_ADDRESS"
  # Ray itself would notice the end of its head a minute later.
  missed=0
  while [ "$missed" -lt 3 ]; do
    sleep 2 &
    wait $!
    if answers; then missed=0; else missed=$((missed + 1)); fi
    if ! kill -0 "$ray_pid" 2>/dev/null && [ "$missed" -eq 0 ]; then
      say "Ray ended here: $folder/ray_node_$rank.log"
      exit 1
    fi
  done
  say "the head is gone, leaving"
fi
