//! `brigade generate`

use crate::place::Place;

#[test]
fn a_trained_run_goes_on_with_text() {
    let place = Place::new();
    place.succeed(
        &mut place.train("--nproc-per-node 2 --steps 150 --set optimizer.learning_rate=1e-2 --out a"),
    );
    let text = |line: &str| {
        let done = place.succeed(
            place.brigade("generate --model a").args(["--prompt", "fn number_"]).args(line.split(' ')),
        );
        assert_eq!(done.err, "");
        done.out
    };
    let first = text("--tokens 40 --seed 1");
    assert!(first.starts_with("fn number_") && first.ends_with('\n') && first.len() > 12, "{first:?}");
    assert_eq!(text("--tokens 40 --seed 1"), first);
    assert_ne!(text("--tokens 40 --seed 2 --temperature 2"), text("--tokens 40 --seed 3 --temperature 2"));
    assert_eq!(text("--tokens 0"), "fn number_\n");
    // The best token each time, whatever the seed; the text grows beyond the model's 16 positions.
    let best = text("--tokens 30 --temperature 0 --seed 1");
    assert_eq!(text("--tokens 30 --temperature 0 --seed 2"), best);
    assert!(best.len() > 20 && best.is_ascii(), "{best:?}");

    let done = place.succeed(&mut place.brigade("generate --model a --tokens 5"));
    assert!(!done.out.contains("endoftext"), "{:?}", done.out);
}

#[test]
fn what_is_missing_is_named() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let refused = |line: &str, said: &str| {
        let done = place.run(&mut place.brigade(&format!("generate {line}")));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    };
    refused("--model ./nowhere", "nowhere: it has no config.json; is it the folder");
    refused("--out text", "text: it has no config.json; is it the folder of a finished run or of a model?");
    refused("--model a --temperature -1", "it is a number of at least 0");
    refused("--prompt x", "--model <MODEL>");
    let config = place.text("a/config.json");
    std::fs::write(place.path("a/config.json"), config.replace("\"n_embd\": 16", "\"n_embd\": 32")).unwrap();
    refused("--model a", "the model needs");
    std::fs::write(place.path("a/model.safetensors"), "short").unwrap();
    refused("--model a", "is not a whole safetensors file");
    std::fs::remove_file(place.path("a/model.safetensors")).unwrap();
    refused("--model a", "model.safetensors");
}

/// Burn's default device is the first GPU in a build for GPUs, on every rank, and fails where there is none. It panics where it is
/// asked for while the environment names one that there is not.
#[test]
fn nothing_is_made_on_a_default_device() {
    const DEFAULT: (&str, &str) = ("BURN_DEVICE", "none");
    let place = Place::new();
    let line = "--nproc-per-node 2 --zero 3 --checkpoint-every 2 --out a";
    place.succeed(place.train(&format!("{line} --steps 4")).env(DEFAULT.0, DEFAULT.1));
    place.succeed(place.train(&format!("{line} --steps 6 --resume auto")).env(DEFAULT.0, DEFAULT.1));
    place.succeed(place.brigade("generate --model a --tokens 5").env(DEFAULT.0, DEFAULT.1));
}

#[test]
fn a_tokenizer_of_another_run_is_refused() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --set data.tokenizer=bpe:300 --out b"));
    std::fs::copy(place.path("b/tokenizer.json"), place.path("a/tokenizer.json")).unwrap();
    let done = place.run(&mut place.brigade("generate --model a"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    let told = ["a/tokenizer.json has ", " token ids, but the model of ", "a/config.json has 257"];
    assert!(told.iter().all(|part| done.err.contains(part)), "{}", done.err);
}
