//! The findings of `examine`.

use brigade_cuda::examine;
use brigade_report::MachineFinding;

use crate::harness::assert_contains;

fn finding<'a>(findings: &'a [MachineFinding], name: &str) -> &'a MachineFinding {
    findings.iter().find(|finding| finding.name == name).unwrap()
}

stand_in_test!(everything_that_is_found_is_shown, ["STAND_IN_GPUS" = "3", "NCCL_DEBUG" = "WARN"], {
    let findings = examine();
    for finding in &findings {
        println!("{finding:?}");
        // libdevice is that of this machine, if it has one.
        assert!(finding.ok || finding.name == "libdevice", "{finding:?}");
    }
    assert_contains(&finding(&findings, "driver").text, &["CUDA 12.8", "libcuda.so"]);
    let gpu = finding(&findings, "GPU 2");
    assert_contains(&gpu.text, &["Stand-in 2", "80.00 GiB", "9.0", "GPU-33333333-", "0000:03:00.0"]);
    let peers = finding(&findings, "direct access between GPUs");
    assert_eq!(peers.text, "0: - 1 0; 1: 0 - 1; 2: 0 0 -");
    assert!(peers.advice.is_some());
    assert_contains(&finding(&findings, "NCCL").text, &["2.27.3", "libnccl.so.2"]);
    assert_contains(&finding(&findings, "environment").text, &["NCCL_DEBUG=WARN", "LD_LIBRARY_PATH="]);
});

stand_in_test!(
    what_is_missing_is_shown_with_advice,
    [
        "STAND_IN_INIT" = "100",
        "BRIGADE_NCCL" = "/nowhere",
        "BRIGADE_CUBLAS" = "/nowhere",
        "CUDA_PATH" = "/nowhere",
        "CUDA_VISIBLE_DEVICES" = ""
    ],
    {
        let findings = examine();
        for name in ["driver", "NCCL", "cuBLAS", "libdevice", "environment"] {
            let finding = finding(&findings, name);
            println!("{finding:?}");
            assert!(
                !finding.ok && finding.advice.as_ref().is_some_and(|advice| advice.len() > 20),
                "{finding:?}"
            );
        }
        assert!(!findings.iter().any(|finding| finding.name.starts_with("GPU")));
    }
);

stand_in_test!(
    an_older_driver_is_good_but_comes_with_advice,
    ["STAND_IN_DRIVER" = "12020", "STAND_IN_GPUS" = "1"],
    {
        let findings = examine();
        let driver = finding(&findings, "driver");
        assert!(
            driver.ok && driver.advice.as_ref().is_some_and(|advice| advice.contains("12.5")),
            "{driver:?}"
        );
        assert!(findings.iter().all(|finding| finding.name != "direct access between GPUs"));
    }
);
