//! A run that needs more memory than its processes may have.

use crate::place::Place;
use crate::processes::limited;

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_needs_too_much_memory_says_so_before_and_after() {
    let place = Place::new();
    // 25 million parameters, with gradients and the state of AdamW on each rank, beside what the program itself takes.
    let line = "--nproc-per-node 2 --dp 2 --set model.width=1024 --out a";
    let done = place.run(&mut limited(&place.train(line), 560_000));
    assert_eq!(done.code, Some(1), "{}", done.err);
    let warning = done.err.lines().find(|line| line.starts_with("warning: ")).unwrap_or_default();
    for part in [
        "warning: the run will need about ",
        "on 2 ranks of up to ",
        "a process has an address space of 546.88 MiB (ulimit -v), of which ",
        "it would need about ",
    ] {
        assert!(warning.contains(part), "{part}: {}", done.err);
    }
    let plan = warning.trim_start_matches("warning: ");
    let said = done.err.lines().find(|line| line.contains(" ran out of memory: ")).unwrap_or_default();
    assert!(said.starts_with("brigade: rank ") && said.contains("memory allocation of "), "{}", done.err);
    assert!(said.ends_with(plan), "{said}");
}

/// Whatever it is that needs memory is in the plan.
#[test]
fn a_dry_run_leaves_nothing_unknown() {
    let place = Place::new();
    for line in ["", "--nproc-per-node 2 --pp 2", "--set compute.dtype=\"bf16\" --recompute all"] {
        let done = place.succeed(&mut place.train(&format!("{line} --dry-run")));
        assert!(done.out.contains("saved activations ") && !done.out.contains("unknown"), "{}", done.out);
        assert!(done.out.contains("# the run will need about "), "{}", done.out);
    }
}

/// Sizes of micro-batches are halved until one fits.
#[cfg(target_os = "linux")]
#[test]
fn a_size_of_micro_batches_that_needs_too_much_memory_is_halved() {
    let place = Place::new();
    let model = "--set model.width=32 --set model.sequence_length=1024 --set train.global_batch_size=32";
    let sizes =
        "--set train.micro_batch_size=32 --micro-batch-size auto --nproc-per-node 1 --steps 1 --out a";
    let done = place.run(&mut limited(&place.train(&format!("{model} {sizes}")), 400_000));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let tried: Vec<&str> = done.err.lines().filter(|line| line.starts_with("micro-batch size ")).collect();
    assert!(
        tried[0].contains("micro-batch size 32: ") && tried[0].contains("ran out of memory"),
        "{}",
        done.err
    );
    let size = done.err.lines().find_map(|line| line.strip_prefix("--micro-batch-size auto: ")).unwrap();
    let size: usize = size.split(',').next().unwrap().parse().unwrap();
    assert!(
        size < 256 && place.text("a/config.toml").contains(&format!("micro_batch_size = {size}\n")),
        "{size}"
    );
}
