//! Finding and loading NCCL.

use brigade_cuda::nccl;

use crate::harness::assert_contains;

stand_in_test!(it_is_found_by_name, [], {
    let nccl = nccl().unwrap();
    assert_eq!((nccl.version(), nccl.version_name()), (22_703, "2.27.3".to_owned()));
    assert!(nccl.path().ends_with("both/libnccl.so.2"), "{}", nccl.path());
});

stand_in_test!(
    the_named_file_comes_first,
    [
        "BRIGADE_NCCL" = concat!(env!("CARGO_TARGET_TMPDIR"), "/stand_ins/both/libnccl.so.2"),
        "libraries" = "driver"
    ],
    {
        assert!(nccl().unwrap().path().ends_with("both/libnccl.so.2"));
    }
);

stand_in_test!(a_named_file_that_does_not_exist_is_an_error, ["BRIGADE_NCCL" = "/nowhere/libnccl.so.2"], {
    let text = nccl().err().unwrap().to_string();
    assert_contains(&text, &["BRIGADE_NCCL=/nowhere/libnccl.so.2 cannot be loaded", "No such file", "unset"]);
});

stand_in_test!(if_it_is_missing_the_message_says_where_it_may_be, ["libraries" = "driver"], {
    match nccl() {
        Err(error) => assert_contains(
            &error.to_string(),
            &[
                "found no NCCL",
                "libnccl.so.2: ",
                "libnccl.so: ",
                "BRIGADE_NCCL",
                "nvidia/nccl/lib",
                "does not look",
            ],
        ),
        Ok(nccl) => println!("not checked: this host has NCCL, {}", nccl.path()),
    }
});

stand_in_test!(an_old_version_is_refused, ["STAND_IN_NCCL" = "21005"], {
    let text = nccl().err().unwrap().to_string();
    assert_contains(&text, &["NCCL 2.10.5", "both/libnccl.so.2", "at least 2.19.1"]);
});

stand_in_test!(a_missing_function_is_named, ["libraries" = "without_split"], {
    let text = nccl().err().unwrap().to_string();
    assert_contains(
        &text,
        &["NCCL 2.27.3", "without_split/libnccl.so.2", "lacks the function ncclCommSplit"],
    );
});
