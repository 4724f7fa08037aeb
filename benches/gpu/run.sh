#!/usr/bin/env bash
# Measures Brigade and PyTorch on one GPU, in one go, on a machine that needs neither a network nor a compiler.
#
#     benches/gpu/run.sh BRIGADE PYTHON OUT [ROW…]
#
# BRIGADE is the binary of `cargo xtask dist --backend cuda`, PYTHON is Python 3.8 or newer (with torch for the rows that need it),
# and OUT a folder. Without a ROW, all are measured; the end of this file lists them. OUT gets gpu.md (the table), raw.jsonl (all
# figures) and log.txt. Figures of earlier calls are kept, so that rows can be measured a few at a time.
# README.md beside this file says what each row proves, and lists the variables.
set -euo pipefail

if [ $# -lt 3 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
brigade=$(realpath "$1")
python=$2
[ -x "$brigade" ] || { echo "run.sh: $1 is not a program" >&2; exit 2; }
mkdir -p "$3"
out=$(realpath "$3")
shift 3
[[ $python != */* ]] || python=$(realpath -s "$python")

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
backend=${BACKEND:-cuda}                    # cpu: only tries the script
config=${CONFIG:-configs/gpt2-124m.toml}
text=${TEXT:-crates}                        # the training data: a file or a folder, read as bytes
steps=${STEPS:-20}                          # measured
export WARM_UP=${WARM_UP:-5}                # before those
micro_batch=${MICRO_BATCH:-16}              # of rows that do not search for the largest
runs=${RUNS:-3}                             # of each side, alternating
limit=${LIMIT:-600}                         # seconds that one command may take
log=$out/log.txt raw=$out/raw.jsonl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BRIGADE_CACHE_DIR=${BRIGADE_CACHE_DIR:-$work/cache}

figures() { "$python" "$here/figures.py" "$@"; }
record() { figures "$@" | tee -a "$raw"; }
say() { printf '%s\n' "$*" | tee -a "$log" >&2; }
skip() { record line "row=$row" name=skipped "why=$*" >/dev/null; say "$row: skipped: $*"; }
# With SIGINT, since SIGTERM would make Brigade save a checkpoint first.
limited() { timeout --signal=INT --kill-after=10 "$limit" "$@"; }

# train NAME STEPS FLAGS…: a run, with its results in $work/NAME.
train() {
    local name=$1 count=$2
    shift 2
    rm -rf "${work:?}/$name"
    printf '\n$ brigade train %s\n' "$*" >>"$log"
    limited "$brigade" train --standalone --backend "$backend" --checkpoint-every 0 --out "$work/$name" \
        --steps "$count" --set data.validation_fraction=0 --set comm.train_timeout_seconds="$limit" \
        ${PEAK_TFLOPS:+--peak-tflops "$PEAK_TFLOPS"} "$@" >"$work/$name.log" 2>&1 || {
        local code=$?
        tail -n 40 "$work/$name.log" >>"$log"
        say "$row: brigade train $* ended with $code; the end of its output is in $log"
        return "$code"
    }
}

# gpt2 NAME STEPS MICRO_BATCH FLAGS…: trains the model of $config on $ranks ranks (1) with $micro_batches micro-batches each (1).
gpt2() {
    local name=$1 count=$2 size=$3 ranks=${ranks:-1}
    shift 3
    train "$name" "$count" --config "$config" --data "$text" --set data.tokenizer=bytes --nproc-per-node "$ranks" \
        --micro-batch-size "$size" --global-batch-size $((size * ranks * ${micro_batches:-1})) "$@"
}

# The largest micro-batch that fits, searched as in torch_gpt2.py; a size does not fit if the run fails. Compiling and tuning kernels
# for a new size takes longer than the steps, so each trial is a whole run, and the last one that fits is the result.
fits() {
    local why=
    if gpt2 trial $((WARM_UP + steps)) "$1"; then
        record steps "$work/trial" row=peers "name=brigade trial" "micro_batch=$1" fits=true >&2
        record steps "$work/trial" row=peers name=brigade "micro_batch=$1" >&2
        return 0
    fi
    why=$(grep -iE 'memory|error|panicked|failed' "$work/trial.log" | tail -n 1 | cut -c -200) || true
    record line row=peers "name=brigade trial" "micro_batch=$1" fits=false "why=$why" >&2
    return 1
}
largest() {
    local size=${FIRST:-8} most=${MOST:-512} gap least
    until fits "$size"; do
        [ "$size" -gt 1 ] || { say "$row: not even a micro-batch of one sequence fits"; return 1; }
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
    if [ -n "${BRIGADE_MICRO_BATCH:-}" ]; then fits "$BRIGADE_MICRO_BATCH"; else largest >/dev/null; fi
}

row_torch() {
    "$python" -c 'import torch' 2>/dev/null || { skip "$python has no torch"; return; }
    local mode found ok=true first=${FIRST:-8} flags=(--most "${MOST:-512}")
    [ "$backend" != cpu ] || flags+=(--device cpu --tiny)
    for mode in eager compile; do
        found=$work/torch-$mode.jsonl
        limited "$python" "$here/torch_gpt2.py" --mode "$mode" --steps "$steps" --warm-up "$WARM_UP" --first "$first" \
            --micro-batch "${TORCH_MICRO_BATCH:-0}" "${flags[@]}" >"$found" 2>>"$log" || {
            say "$row: torch_gpt2.py --mode $mode ended with $?; see $log"
            ok=false
        }
        # Compiling takes long, so the next search starts where this one ended.
        first=$(sed -n 's/^{"kind": "result".*"micro_batch": \([0-9]*\),.*/\1/p' "$found")
        first=${first:-8}
        # The table shows both sides together.
        sed "s/^{\"kind\": \"trial\"/{\"row\": \"peers\", \"name\": \"torch trial\"/
             s/^{\"kind\": \"result\"/{\"row\": \"peers\", \"name\": \"torch $mode\"/" "$found" | tee -a "$raw"
    done
    [ $ok = true ]
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
    [ -n "${BLOCKS_BENCH:-}" ] || { skip "BLOCKS_BENCH is not set to a program"; return; }
    local mode i
    for ((i = 0; i < runs; i++)); do
        for mode in blocks "one graph"; do
            # shellcheck disable=SC2086 # It may contain flags.
            limited $BLOCKS_BENCH "${mode// /-}" "$micro_batch" $((WARM_UP + steps)) >"$work/blocks.jsonl" 2>>"$log"
            tail -n "$steps" "$work/blocks.jsonl" | sed "s/^{/{\"row\": \"blocks\", \"name\": \"$mode\", \"run\": $i, /" | tee -a "$raw"
        done
    done
}

row_memory() {
    local ranks size flags
    for ranks in 1 2; do
        # The ranks share the GPU and its memory.
        size=$((micro_batch > ranks ? micro_batch / ranks : 1))
        flags=(--dp "$ranks" --zero 3 --recompute all)
        [ "$ranks" -eq 1 ] || flags+=(--collectives host)
        gpt2 plan 1 "$size" "${flags[@]}" --dry-run
        gpt2 memory 5 "$size" "${flags[@]}"
        record memory "$work/memory" "$work/plan.log" row=memory "name=dp $ranks" "micro_batch=$size"
    done
}

row_losses() {
    local reference=${REFERENCE:-} type count
    [ -f "$reference/config.toml" ] || { skip "REFERENCE is not the folder of a run on the CPU"; return; }
    count=$(wc -l <"$reference/metrics.jsonl")
    for type in bf16 f32; do
        # The file has the text's absolute path on the machine of the reference.
        train losses "$count" --config "$reference/config.toml" --data "$text" --nproc-per-node 1 --dp 1 --pp 1 --zero 0 \
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
            --nproc-per-node $ranks --dp $ranks --collectives host --micro-batch-size 4 --global-batch-size 16 \
            --set "compute.dtype=$([ "$backend" = cuda ] && echo bf16 || echo fp32)"
        record steps "$work/shared-$ranks" row=shared "name=$name"
        [ $ranks -eq 1 ] || record losses "$work/shared-$ranks" "$work/shared-1" row=shared "name=$name apart"
    done
}

row_bits() {
    local sums=() name
    for name in first second; do
        # At the full learning rate: in a warm-up of thousands of steps the weights hardly change, whatever the gradients are.
        gpt2 $name 10 "$micro_batch" --set schedule.warmup_steps=0 --set schedule.warmup_tokens=0
        sums+=("$(sha256sum <"$work/$name/model.safetensors" | cut -d ' ' -f 1)")
    done
    record line row=bits name=twice "first=${sums[0]}" "second=${sums[1]}"
}

# tests FILTER COMMAND…: runs those tests of $BACKENDS_TEST, with COMMAND before it if given. A test that finds no GPU fails.
tests() {
    local filter=$1 code=0
    shift
    # shellcheck disable=SC2086 # The filter may have several words.
    BRIGADE_REQUIRE_CUDA=1 limited "$@" "$BACKENDS_TEST" --test-threads 1 $filter >"$work/tests.log" 2>&1 || code=$?
    cat "$work/tests.log" >>"$log"
    record tests "$work/tests.log" "row=$row" name=tests "code=$code"
    return "$code"
}

row_tests() {
    [ -x "${BACKENDS_TEST:-}" ] || { skip "BACKENDS_TEST is not set to a program"; return; }
    tests "${TESTS_FILTER:-}"
}

row_sanitizer() {
    [ -x "${BACKENDS_TEST:-}" ] || { skip "BACKENDS_TEST is not set to a program"; return; }
    command -v compute-sanitizer >/dev/null || { skip "compute-sanitizer is not installed"; return; }
    # Tests that train check numbers, and take much longer under the sanitizer.
    tests "${SANITIZER_FILTER:-nccl::by_events}" compute-sanitizer --tool memcheck --target-processes all --error-exitcode 86
    grep -q 'ERROR SUMMARY: 0 errors' "$work/tests.log" || { say "$row: its log does not contain ERROR SUMMARY: 0 errors"; return 1; }
}

# Gradients go through NCCL, block by block, during the backward of the last micro-batch.
row_profile() {
    export BRIGADE_NCCL_ALONE=1
    local micro_batches=4 place=$work/profiled
    mkdir -p "$place"
    if command -v nsys >/dev/null; then
        # A program for $brigade that runs it under nsys.
        printf '#!/bin/sh\nexec nsys profile --trace cuda,nvtx,osrt --force-overwrite true --output "%s" "%s" "$@"\n' \
            "$out/step" "$brigade" >"$place/brigade"
        chmod +x "$place/brigade"
        brigade=$place/brigade gpt2 profile 8 "$micro_batch"
        nsys stats --report cuda_gpu_kern_sum --format csv --force-export true "$out/step.nsys-rep" >"$out/kernels.csv" 2>>"$log"
        record line row=profile name=nsys file=step.nsys-rep
        return
    fi
    [ "$backend" != cpu ] || { skip "nsys is not installed, and without a GPU there are no kernels"; return; }
    # CubeCL reads its settings from the current folder. Its lines appear between those of Brigade's steps.
    printf '[profiling.logger]\nlevel = "basic"\nstderr = true\n' >"$place/cubecl.toml"
    config=$(realpath "$config") text=$(realpath "$text")
    cd "$place"
    gpt2 profile 6 "$micro_batch" --set output.log_every=1
    record kernels "$work/profile.log" "$out/kernels.csv" row=profile name=CubeCL file=kernels.csv
}

# Which kernels run for how long, and what the GPU waits for between them.
row_trace() {
    [ "$backend" != cpu ] || { skip "without a GPU there are no kernels"; return; }
    local toolkit=${CUDA_PATH:-/usr/local/cuda} header library
    header=$(find -L "$toolkit" -maxdepth 5 -name cupti.h 2>/dev/null | head -n 1)
    library=$(find -L "$toolkit" -maxdepth 5 -name 'libcupti.so*' 2>/dev/null | head -n 1)
    [ -n "$header" ] && [ -n "$library" ] && command -v gcc >/dev/null || { skip "it needs gcc, and CUPTI of a CUDA toolkit at CUDA_PATH"; return; }
    gcc -shared -fPIC -O2 -I"$(dirname "$header")" "$here/trace.c" -o "$work/trace.so" "$library" -Wl,-rpath,"$(dirname "$library")" 2>>"$log"
    CUDA_INJECTION64_PATH=$work/trace.so TRACE=$work/trace.csv gpt2 traced $((WARM_UP + steps)) "$micro_batch"
    "$python" "$here/gaps.py" "$work/trace.csv" | tee "$out/gaps.txt"
    record line row=trace name=CUPTI file=gaps.txt
}

row=machine
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1) || gpu="none"
# Brigade would find NCCL and cuBLAS itself, but is to use the same ones as torch, which it is compared with.
if [ -z "${BRIGADE_NCCL:-}" ]; then
    nccl=$("$python" -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null) || nccl=
    [ ! -f "$nccl" ] || export BRIGADE_NCCL=$nccl
fi
if [ -z "${BRIGADE_CUBLAS:-}" ]; then
    cublas=$("$python" -c 'import nvidia, os
print(next(f for p in nvidia.__path__ for d in ("cu13", "cublas") for v in "32" if os.path.isfile(f := f"{p}/{d}/lib/libcublas.so.1{v}")))' 2>/dev/null) || cublas=
    [ ! -f "$cublas" ] || export BRIGADE_CUBLAS=$cublas
fi
record line row=machine name=machine "GPU, driver, memory=$gpu" "program=$(basename "$brigade")" "config=$config" \
    "CPUs=$(nproc)" "torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none)" \
    "steps=$steps after $WARM_UP, $runs runs"

"$brigade" doctor >>"$log" 2>&1 || true

all=(peers torch nccl blocks memory losses shared bits tests sanitizer profile trace)
[ $# -gt 0 ] || set -- "${all[@]}"
for row in "$@"; do
    declare -F "row_$row" >/dev/null || { say "run.sh: unknown row $row; the rows are ${all[*]}"; exit 2; }
done
failed=()
for row in "$@"; do
    say "== $row"
    # In a process of its own, so that a failure ends only this row.
    set +e
    (set -e; "row_$row")
    code=$?
    set -e
    [ $code -eq 0 ] || failed+=("$row")
    # After each row, since this may be interrupted at any time.
    if figures table "$raw" >"$work/gpu.md"; then cp "$work/gpu.md" "$out"; else failed+=("the table after $row"); fi
done
[ ! -f "$out/gpu.md" ] || cat "$out/gpu.md"
[ ${#failed[@]} -eq 0 ] || { say "run.sh: failed: ${failed[*]}"; exit 1; }
