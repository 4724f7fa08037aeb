//! A short run of each target, and the runner on targets that are broken on purpose.

use brigade_fuzz::input::{Inputs, MAX_TRIES, minimise, payloads};
use brigade_fuzz::run::memory::Counting;
use brigade_fuzz::run::report::save_failure;
use brigade_fuzz::run::{Failure, Outcome, run};
use brigade_fuzz::run::{Fault, check};
use brigade_fuzz::target::{Bound, Limit, Target, bare};
use brigade_fuzz::targets::{ALL, named};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn short(target: &Target, count: u64) -> Outcome {
    run(target, &Inputs::new(target, payloads(target).expect("the corpus is there"), 1), count, |_| ())
}

/// Each target a test of its own, so that they run side by side.
macro_rules! targets {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                let outcome = short(named(stringify!($name)).unwrap(), 5_000);
                assert_eq!(outcome.failure, None);
                assert!(outcome.used.total > 0, "the allocator counts");
                assert!(outcome.parsed > 0.05 && outcome.parsed < 0.95, "{} parsed", outcome.parsed);
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            assert_eq!(ALL.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}
targets!(
    frame,
    rendezvous,
    header,
    flight,
    diagnosis,
    manifest,
    safetensors,
    settings,
    plan,
    environment,
    jsonl,
    gzip,
    zstd,
    parquet,
    arrow,
    tokenizer,
    weights
);

#[test]
fn unchanged_payloads_parse() {
    for target in &ALL {
        let inputs = Inputs::new(target, payloads(target).unwrap(), 0);
        assert!(inputs.valid() > 1, "{}", target.name);
        for number in 0..inputs.valid() {
            let input = inputs.get(number);
            assert!((target.parsed)(&input), "{} {number}: {}", target.name, String::from_utf8_lossy(&input));
        }
    }
}

#[test]
fn an_input_depends_on_seed_target_and_number_alone() {
    let frame = named("frame").unwrap();
    let inputs = |target: &Target, seed| {
        let inputs = Inputs::new(target, payloads(frame).unwrap(), seed);
        [500, 3, 501, 500].map(|number| inputs.get(number))
    };
    let first = inputs(frame, 1);
    assert_eq!(first[0], first[3]);
    assert_ne!(first[0], first[2]);
    assert_eq!(first, inputs(frame, 1));
    assert_ne!(first[2], inputs(frame, 2)[2]);
    assert_ne!(first[2], inputs(&Target { name: "other", ..*frame }, 1)[2]);
}

/// A parser of "number,number": the numbers' sum must not exceed 99, and the first is believed to be a length.
const PLANTED: Target = Target {
    name: "planted",
    run: |_| (),
    parsed: |_| true,
    bound: Bound { peak: Limit { fixed: 1024, per_byte: 4 }, total: Limit { fixed: 4096, per_byte: 16 } },
    payloads: || vec![b"{\"length\":12,\"sum\":34}".to_vec()],
    envelope: bare,
};

/// What follows `"length":`, up to the comma.
fn announced(input: &[u8]) -> Option<u32> {
    let text = str::from_utf8(input).ok()?;
    let (_, rest) = text.split_once("\"length\":")?;
    rest.split_once(',')?.0.parse().ok()
}

fn found(target: &Target) -> Failure {
    let failure = short(target, 20_000).failure.expect("the fault is found");
    let input = minimise(&failure.input, MAX_TRIES, |smaller| {
        check(target, smaller).is_err_and(|fault| fault.is_like(&failure.fault))
    });
    assert!(input.len() <= failure.input.len());
    Failure { fault: check(target, &input).expect_err("it still fails"), input, ..failure }
}

#[test]
fn a_planted_panic_is_found_and_kept() {
    let failure = found(&Target {
        run: |input| assert!(announced(input).is_none_or(|length| length < 256), "too long"),
        ..PLANTED
    });
    let Fault::Panic { text } = &failure.fault else { panic!("{}", failure.fault) };
    assert!(text.contains("too long") && text.contains("fuzz.rs"), "{text}");
    assert!(failure.input.len() <= 15, "{}", String::from_utf8_lossy(&failure.input));

    let folder = tempfile::tempdir().unwrap();
    let said = save_failure(folder.path(), "planted", &failure).unwrap();
    let name = said.rsplit_once('/').unwrap().1;
    assert!(said.contains("cargo xtask fuzz --target planted --file fuzz/failures/planted-"), "{said}");
    assert_eq!(std::fs::read(folder.path().join(name)).unwrap(), failure.input);
}

#[test]
fn planted_allocations_are_found() {
    let peak = found(&Target {
        run: |input| drop(vec![1u8; announced(input).unwrap_or(0) as usize % (1 << 20)]),
        ..PLANTED
    });
    assert!(matches!(peak.fault, Fault::PeakMemory { used, allowed } if used > allowed), "{}", peak.fault);
    let total = found(&Target {
        run: |input| {
            for _ in 0..announced(input).unwrap_or(0) % (1 << 16) {
                drop(std::hint::black_box(vec![1u8; 100]));
            }
        },
        ..PLANTED
    });
    assert!(matches!(total.fault, Fault::TotalMemory { used, allowed } if used > allowed), "{}", total.fault);
}
