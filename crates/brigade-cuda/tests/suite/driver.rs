//! The driver and its GPUs.

use std::sync::Arc;

use brigade_cuda::{Context, Error, Event, Gpu, Stream, driver};

use crate::harness::{assert_contains, live};

stand_in_test!(gpus_are_described, ["STAND_IN_GPUS" = "2"], {
    let driver = driver().unwrap();
    assert_eq!((driver.version(), driver.version_name()), (12_080, "12.8".to_owned()));
    assert!(driver.path().ends_with("both/libcuda.so"), "{}", driver.path());
    assert!(driver.has_context_events());
    let gpus = driver.gpus().unwrap();
    assert_eq!(gpus.len(), 2);
    let expected = Gpu {
        index: 1,
        name: "Stand-in 1".to_owned(),
        uuid: "GPU-22222222-2222-2222-2222-222222222222".to_owned(),
        pci_bus_id: "0000:02:00.0".to_owned(),
        total_memory: 80 << 30,
        compute_capability: (9, 0),
    };
    assert_eq!(gpus[1], expected);
    assert_eq!((driver.can_access_peer(0, 1), driver.can_access_peer(1, 0)), (Ok(true), Ok(false)));
});

stand_in_test!(an_old_driver_is_refused, ["STAND_IN_DRIVER" = "11040"], {
    let text = driver().err().unwrap().to_string();
    assert_contains(&text, &["both/libcuda.so", "supports CUDA 11.4", "at least 12.0", "update the driver"]);
});

stand_in_test!(no_gpu_is_reported, ["STAND_IN_INIT" = "100", "CUDA_VISIBLE_DEVICES" = "-1"], {
    let text = driver().err().unwrap().to_string();
    assert_contains(
        &text,
        &["CUDA_ERROR_NO_DEVICE (100)", "no CUDA-capable device", "CUDA_VISIBLE_DEVICES=-1"],
    );
});

stand_in_test!(a_mismatch_is_reported, ["STAND_IN_INIT" = "803"], {
    let text = driver().err().unwrap().to_string();
    assert_contains(
        &text,
        &["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "no description", "different versions"],
    );
});

stand_in_test!(an_unknown_result_is_reported, ["STAND_IN_INIT" = "123456"], {
    assert_contains(&driver().err().unwrap().to_string(), &["an unknown CUresult (123456)", "nvidia-smi"]);
});

stand_in_test!(a_missing_library_is_reported, ["libraries" = "none"], {
    match driver() {
        Err(error) => {
            assert_eq!(error, Error::NoDriver);
            assert_contains(&error.to_string(), &["libcuda.so.1", "LD_LIBRARY_PATH", "--gpus all"]);
        }
        Ok(driver) => println!("not checked: this host has a driver, {}", driver.path()),
    }
});

stand_in_test!(a_gpu_that_does_not_exist_is_named, ["STAND_IN_GPUS" = "1"], {
    let text = Context::new(3).err().unwrap().to_string();
    assert_contains(
        &text,
        &["opening GPU 3", "cuDeviceGet", "CUDA_ERROR_INVALID_DEVICE (101)", "invalid device"],
    );
});

stand_in_test!(an_older_driver_has_no_context_events, ["STAND_IN_DRIVER" = "12040"], {
    assert!(!driver().unwrap().has_context_events());
    let context = Context::new(0).unwrap();
    let text = context.wait_event(&Event::new(&context).unwrap()).unwrap_err().to_string();
    assert_contains(&text, &["CUDA 12.4", "needs 12.5"]);
});

stand_in_test!(everything_that_is_made_is_freed, [], {
    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    let event = Arc::new(Event::new(&context).unwrap());
    assert_eq!((live("streams"), live("events"), live("contexts")), (1, 1, 1));
    drop(context);
    // On a thread without a context.
    std::thread::spawn(move || drop((stream, event))).join().unwrap();
    assert_eq!((live("streams"), live("events"), live("contexts")), (0, 0, 0));
});

// Burn's backend times kernels, to choose between them, with this function of cudarc. Its variant for CUDA 13 needs a function that
// drivers before 12.8 lack, and panics without it.
stand_in_test!(kernels_are_timed_with_a_function_that_every_driver_has, ["STAND_IN_DRIVER" = "12000"], {
    // SAFETY: the stand-in does not look at the events.
    let elapsed =
        unsafe { cudarc::driver::result::event::elapsed(std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!(elapsed, Ok(1.5));
});
