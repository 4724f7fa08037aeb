#!/usr/bin/env bash
# Measures Brigade and PyTorch on one GPU, in one go, on a machine that needs no network and no compiler.
#
#     benches/gpu/run.sh BRIGADE PYTHON OUT [ROW…]
#
# BRIGADE is the binary of `cargo xtask dist --backend cuda`, PYTHON a Python 3.8 or newer, with torch for the rows that
# need it, OUT a folder. Rows: see the end of this file; none are all. OUT gets gpu.md (the table), raw.jsonl (all
# figures) and log.txt; figures of an earlier call stay, so that rows can be measured a few at a time.
# README.md beside this file says what each row proves, and lists the variables.
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
brigade=$(realpath "$1")
python=$2
[ -x "$brigade" ] || { echo "run.sh: $1 is no program" >&2; exit 2; }
mkdir -p "$3"
out=$(realpath "$3")
shift 3
[[ $python != */* ]] || python=$(realpath -s "$python")

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
backend=${BACKEND:-cuda}                    # cpu only tries the script
config=${CONFIG:-configs/gpt2-124m.toml}
text=${TEXT:-crates}                        # what is trained on: a file or a folder, read as bytes
steps=${STEPS:-20}                          # those that count
export WARM_UP=${WARM_UP:-5}                # those before
micro_batch=${MICRO_BATCH:-16}              # of rows that do not look for the largest
runs=${RUNS:-3}                             # of each side, in turns
limit=${LIMIT:-600}                         # seconds that one command may take
log=$out/log.txt raw=$out/raw.jsonl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BRIGADE_CACHE_DIR=${BRIGADE_CACHE_DIR:-$work/cache}

figures() { "$python" "$here/figures.py" "$@"; }
record() { figures "$@" | tee -a "$raw"; }
say() { printf '%s\n' "$*" | tee -a "$log" >&2; }
skip() { record line "row=$row" name=skipped "why=$*" >/dev/null; say "$row: skipped: $*"; }
limited() { timeout --kill-after=10 "$limit" "$@"; }

# train NAME STEPS FLAGS…: a run of which $work/NAME holds the results.
train() {
    local name=$1 count=$2
    shift 2
    rm -rf "${work:?}/$name"
    printf '\n$ brigade train %s\n' "$*" >>"$log"
    limited "$brigade" train --standalone --backend "$backend" --checkpoint-every 0 --out "$work/$name" \
        --steps "$count" --set data.validation_fraction=0 "$@" >"$work/$name.log" 2>&1 || {
        local code=$?
        tail -n 40 "$work/$name.log" >>"$log"
        say "$row: brigade train $* ended with $code; the end of its output is in $log"
        return "$code"
    }
}

# gpt2 NAME STEPS MICRO_BATCH FLAGS…: one rank, one micro-batch a step, of the model of $config.
gpt2() {
    local name=$1 count=$2 size=$3
    shift 3
    train "$name" "$count" --config "$config" --data "$text" --set data.tokenizer=bytes \
        --nproc-per-node 1 --micro-batch-size "$size" --global-batch-size "$size" "$@"
}

# The largest micro-batch that fits, as torch_gpt2.py finds it; a size at which the run fails does not fit.
fits() {
    local ok=true why=
    gpt2 trial 3 "$1" || ok=false
    [ $ok = true ] || why=$(grep -iE 'memory|error|panicked' "$work/trial.log" | head -n 1 | cut -c -200)
    record line row=peers "name=brigade trial" "micro_batch=$1" "fits=$ok" "why=$why" >&2
    [ $ok = true ]
}
largest() {
    local size=${FIRST:-8} most=${MOST:-512} gap least
    until fits "$size"; do
        [ "$size" -gt 1 ] || { say "$row: not even one sequence can be trained on"; return 1; }
        size=$((size / 2))
    done
    if [ "$size" -eq "${FIRST:-8}" ]; then
        while [ $((size * 2)) -le "$most" ] && fits $((size * 2)); do size=$((size * 2)); done
        [ $((size * 2)) -le "$most" ] || { echo "$size"; return; }
    fi
    gap=$((size / 2)) least=$((size >= 8 ? size / 8 : 1))
    while [ "$gap" -ge "$least" ]; do
        if fits $((size + gap)); then size=$((size + gap)); fi
        gap=$((gap / 2))
    done
    echo "$size"
}

row_peers() {
    local size
    size=${BRIGADE_MICRO_BATCH:-$(largest)}
    gpt2 peers $((WARM_UP + steps)) "$size"
    record steps "$work/peers" row=peers name=brigade "micro_batch=$size"
}

row_torch() {
    "$python" -c 'import torch' 2>/dev/null || { skip "$python has no torch"; return; }
    local mode found first=${FIRST:-8} flags=(--most "${MOST:-512}")
    [ "$backend" != cpu ] || flags+=(--device cpu --tiny)
    for mode in eager compile; do
        found=$work/torch-$mode.jsonl
        limited "$python" "$here/torch_gpt2.py" --mode "$mode" --steps "$steps" --warm-up "$WARM_UP" --first "$first" \
            --micro-batch "${TORCH_MICRO_BATCH:-0}" "${flags[@]}" >"$found" 2>>"$log" ||
            say "$row: torch_gpt2.py --mode $mode ended with $?; see $log"
        # To compile takes long: the next search begins where this one ended.
        first=$(sed -n 's/^{"kind": "result".*"micro_batch": \([0-9]*\),.*/\1/p' "$found")
        first=${first:-8}
        # The rows of both sides stand together in the table.
        sed "s/^{\"kind\": \"trial\"/{\"row\": \"peers\", \"name\": \"torch trial\"/
             s/^{\"kind\": \"result\"/{\"row\": \"peers\", \"name\": \"torch $mode\"/" "$found" | tee -a "$raw"
    done
}

row_nccl() {
    local i
    for ((i = 0; i < runs; i++)); do
        gpt2 without $((WARM_UP + steps)) "$micro_batch"
        record steps "$work/without" row=nccl name=without "run=$i"
        BRIGADE_NCCL_ALONE=1 gpt2 through $((WARM_UP + steps)) "$micro_batch"
        record steps "$work/through" row=nccl name=through "run=$i"
    done
}

row_blocks() {
    [ -n "${BLOCKS_BENCH:-}" ] || { skip "BLOCKS_BENCH names no program"; return; }
    local mode i
    for ((i = 0; i < runs; i++)); do
        for mode in blocks "one graph"; do
            # shellcheck disable=SC2086 # It may hold flags.
            limited $BLOCKS_BENCH "${mode// /-}" "$micro_batch" $((WARM_UP + steps)) >"$work/blocks.jsonl" 2>>"$log"
            tail -n "$steps" "$work/blocks.jsonl" | sed "s/^{/{\"row\": \"blocks\", \"name\": \"$mode\", \"run\": $i, /" | tee -a "$raw"
        done
    done
}

row_memory() {
    local flags=(--zero 3 --recompute all)
    gpt2 plan 1 "$micro_batch" "${flags[@]}" --dry-run
    gpt2 memory 5 "$micro_batch" "${flags[@]}"
    record memory "$work/memory" "$work/plan.log" row=memory "name=zero 3, recomputed" "micro_batch=$micro_batch"
}

row_losses() {
    local reference=${REFERENCE:-} type count
    [ -f "$reference/config.toml" ] || { skip "REFERENCE names no folder of a run on the CPU"; return; }
    count=$(wc -l <"$reference/metrics.jsonl")
    for type in bf16 f32; do
        train losses "$count" --config "$reference/config.toml" --nproc-per-node 1 --dp 1 --pp 1 --zero 0 \
            --collectives "$([ "$backend" = cuda ] && echo nccl || echo host)" --set "compute.dtype=$type"
        record losses "$work/losses" "$reference" row=losses "name=$type"
    done
}

row_shared() {
    local ranks name
    for ranks in 1 2 4; do
        name="$ranks ranks"
        [ $ranks -gt 1 ] || name="1 rank"
        train "shared-$ranks" 20 --config "${SHARED_CONFIG:-configs/gpt-13m.toml}" --data "$text" --set data.tokenizer=bytes \
            --nproc-per-node $ranks --dp $ranks --collectives host --micro-batch-size 4 --global-batch-size 16
        record steps "$work/shared-$ranks" row=shared "name=$name"
        [ $ranks -eq 1 ] || record losses "$work/shared-$ranks" "$work/shared-1" row=shared "name=$name apart"
    done
}

row_bits() {
    local sums=() name
    for name in first second; do
        gpt2 $name 10 "$micro_batch"
        sums+=("$(sha256sum <"$work/$name/model.safetensors" | cut -d ' ' -f 1)")
    done
    record line row=bits name=twice "first=${sums[0]}" "second=${sums[1]}"
}

row_sanitizer() {
    local tests=${COLLECTIVES_TEST:-} code=0 summary
    [ -x "$tests" ] || { skip "COLLECTIVES_TEST names no program"; return; }
    command -v compute-sanitizer >/dev/null || { skip "there is no compute-sanitizer"; return; }
    limited compute-sanitizer --tool memcheck --target-processes all --error-exitcode 86 \
        "$tests" --test-threads 1 >"$work/sanitizer.log" 2>&1 || code=$?
    cat "$work/sanitizer.log" >>"$log"
    summary=$(grep -oE 'ERROR SUMMARY: .*|test result: [a-zA-Z]+\. [0-9]+ passed; [0-9]+ failed' "$work/sanitizer.log" | sort -u | paste -sd ',' || true)
    record line row=sanitizer name=memcheck "code=$code" "summary=$summary"
}

row_profile() {
    command -v nsys >/dev/null || { skip "there is no nsys"; return; }
    local plain=$brigade
    # `limited` runs what $brigade names, with nsys before it.
    printf '#!/bin/sh\nexec nsys profile --trace cuda,nvtx,osrt --force-overwrite true --output "%s" "%s" "$@"\n' \
        "$out/step" "$plain" >"$work/profiled"
    chmod +x "$work/profiled"
    brigade=$work/profiled gpt2 profile 8 "$micro_batch"
    nsys stats --report cuda_gpu_kern_sum --format csv --force-export true "$out/step.nsys-rep" >"$out/kernels.csv" 2>>"$log"
    record line row=profile name=nsys "file=step.nsys-rep"
}

row=machine
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1) || gpu="none"
# Brigade looks for NCCL itself; the one that torch brings is what it is compared with.
if [ -z "${BRIGADE_NCCL:-}" ]; then
    nccl=$("$python" -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null) || nccl=
    [ ! -f "$nccl" ] || export BRIGADE_NCCL=$nccl
fi
record line row=machine name=machine "GPU, driver, memory=$gpu" "program=$(basename "$brigade")" "config=$config" \
    "CPUs=$(nproc)" "torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none)" \
    "steps=$steps after $WARM_UP, $runs runs"

all=(peers torch nccl blocks memory losses shared bits sanitizer profile)
[ $# -gt 0 ] || set -- "${all[@]}"
for row in "$@"; do
    declare -F "row_$row" >/dev/null || { say "run.sh: there is no row $row; there are ${all[*]}"; exit 2; }
done
failed=()
for row in "$@"; do
    say "== $row"
    # In a process of its own, so that a failure ends the row and not the others.
    set +e
    (set -e; "row_$row")
    code=$?
    set -e
    [ $code -eq 0 ] || failed+=("$row")
done
figures table "$raw" >"$out/gpu.md"
cat "$out/gpu.md"
[ ${#failed[@]} -eq 0 ] || { say "run.sh: failed: ${failed[*]}"; exit 1; }
