//! Runs on GPUs with NCCL, whose waits are in the times of computing.

use brigade_report::DeviceMemory;
use brigade_runs::scaling::{diagnose, not_told_apart, scaling};
use brigade_runs::{Run, page};

use crate::simulated::Simulated;

/// Ranks that wait for a slow one while their times of computing go on. `total`: of a GPU's memory, which CUDA alone says.
fn on_gpus(dp: usize, settings: &'static str, total: Option<u64>) -> Run {
    let compute = Box::new(move |_: u64, _: usize| 4.0 / dp as f64 + if dp > 1 { 0.5 } else { 0.0 });
    let communication = (0.0, "all_reduce");
    let mut run = Simulated { dp, compute, communication, settings, ..Simulated::default() }.run();
    let memory = DeviceMemory { in_use: 1, reserved: 2, reserved_peak: 2, total };
    run.records.iter_mut().for_each(|record| record.device_memory = Some(memory));
    run
}

#[test]
fn waits_for_nccl_are_not_taken_for_computing() {
    let run = on_gpus(4, "", Some(80 << 30));
    assert_eq!(diagnose(&run), []);
    let note = not_told_apart(&run).unwrap();
    assert!(note.contains("waits for NCCL, which these numbers do not tell apart"), "{note}");
    assert!(page(&run, None).unwrap().contains("which these numbers do not tell apart"));
    let found = scaling(&[on_gpus(1, "", Some(80 << 30)), run]).unwrap();
    assert_eq!(found.gap[0].name, "computing, and waits for NCCL, which these numbers do not tell apart");
    let text = found.to_string();
    assert!(text.ends_with(&format!("{note}.\n").replacen("on GPUs", "On GPUs", 1)), "{text}");
    assert!(!text.contains("No single change") && !text.contains("is exposed"), "{text}");
    assert_eq!(found.json()["not_told_apart"], note);
}

#[test]
fn other_runs_tell_them_apart() {
    let all = Some(80 << 30);
    for run in [
        on_gpus(1, "", all),
        on_gpus(4, "", None),
        on_gpus(4, "[comm]\ncollectives = \"host\"", all),
        on_gpus(4, "[strategy]\nname = \"async-server\"\n[comm]\ncollectives = \"auto\"", all),
        Simulated::default().run(),
    ] {
        assert_eq!(not_told_apart(&run), None, "{:?}", run.settings);
    }
    let found = scaling(&[on_gpus(1, "", None), on_gpus(4, "", None)]).unwrap();
    assert_eq!(found.gap[0].name, "computing, which takes longer for the same work");
    assert!(found.to_string().contains("No single change"), "{found}");
    assert!(found.json()["not_told_apart"].is_null());
}
