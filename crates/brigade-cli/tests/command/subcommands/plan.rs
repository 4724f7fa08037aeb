//! `brigade plan`

use crate::place::Place;

#[test]
fn a_schedule_is_printed_and_drawn() {
    let place = Place::new();
    let line = "plan schedule --pp 4 --micro-batches 8 --schedule 1f1b --svg out.svg";
    let text = place.succeed(&mut place.brigade(line)).out;
    // (p - 1) / (m + p - 1) = 3 / 11
    assert!(text.contains("27.3%"), "{text}");
    assert!(text.contains("F0") && text.contains("B7"), "{text}");
    let drawing = place.text("out.svg");
    assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"), "{drawing}");
    let text = place
        .succeed(&mut place.brigade(
            "plan schedule --pp 2 --micro-batches 4 --schedule interleaved-1f1b --chunks 2 --actions",
        ))
        .out;
    // (p - 1) / (v·m + p - 1) = 1 / 9
    assert!(text.contains("11.1%"), "{text}");
}

#[test]
fn a_schedule_that_cannot_be() {
    let place = Place::new();
    for (line, said) in [
        ("--pp 4 --micro-batches 6 --schedule interleaved-1f1b --chunks 2", "make it 4 or 8"),
        ("--pp 4 --micro-batches 8 --schedule gpipe --chunks 2", "--schedule interleaved-1f1b"),
        ("--pp 0 --micro-batches 8", "at least 1"),
        ("--pp 4 --micro-batches 0", "'--micro-batches <N>': it must be a whole number of at least 1"),
        (
            "--pp 2 --micro-batches 2 --svg nowhere/out.svg",
            "--svg nowhere/out.svg: cannot write it: the folder nowhere does not exist",
        ),
    ] {
        let done = place.run(&mut place.brigade(&format!("plan schedule {line}")));
        assert_ne!(done.code, Some(0), "{line}");
        assert!(done.err.contains(said), "{line}: {}", done.err);
    }
}

#[test]
fn strategies_are_ranked() {
    let place = Place::new();
    let model = "plan --model configs/gpt-13m.toml --global-batch-size 64 --sequence-length 256";
    std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs"), place.path("configs"))
        .unwrap();
    let text =
        place.succeed(&mut place.brigade(&format!("{model} --cluster 1x4xCPU --explain --what-if"))).out;
    for said in [
        "tokens/s",
        "run     brigade train --config configs/gpt-13m.toml",
        "6 N + 12 L h s",
        "ring collectives",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let json =
        place.succeed(&mut place.brigade(&format!("{model} --cluster 2x8xH100-80GB --json --top 3"))).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["plan"]["best"].as_array().unwrap().len(), 3);
    assert!(json["plan"]["best"][0]["tokens_per_second"].as_f64().unwrap() > 1e5, "{json}");
    // The command that it prints is one that there is.
    let line = json["commands"][0].as_str().unwrap().strip_prefix("brigade ").unwrap().to_owned();
    let line = line.split_whitespace().filter(|word| !word.starts_with("HOST")).collect::<Vec<_>>().join(" ");
    let help = line.replace("--node-rank NODE --rdzv-endpoint", "--node-rank 1") + " --help";
    place.succeed(&mut place.brigade(&help));
}

#[test]
fn what_a_file_sets_counts_unless_a_flag_says_otherwise() {
    let place = Place::new();
    let file = "[model]\nwidth = 64\nlayers = 2\nheads = 2\nvocabulary = 257\nsequence_length = 32\n\
                [train]\nglobal_batch_size = 48\nfreeze = [\"block.0\"]\n[optimizer]\nname = \"adan\"\n\
                [comm]\ncompress = \"int8\"\ncompress_gathers = \"int8\"\n[compute]\ndtype = \"bf16\"\n";
    std::fs::write(place.path("my.toml"), file).unwrap();
    let json = |flags: &str| -> serde_json::Value {
        let line = format!("plan --model my.toml --cluster 1x2xL4 --json --pp 1 {flags}");
        serde_json::from_str(&place.succeed(&mut place.brigade(&line)).out).unwrap()
    };
    let plan = json("");
    assert_eq!((&plan["global_batch"], &plan["dtype"]), (&48.into(), &"bf16".into()), "{plan}");
    assert!(plan["note"].as_str().unwrap().starts_with("some parameters are frozen"), "{plan}");
    // Without ZeRO nothing is gathered that could be compressed.
    let best = plan["plan"]["best"].as_array().unwrap();
    assert!(best.iter().all(|best| best["candidate"]["zero"].as_u64() > Some(0)), "{plan}");
    let line = plan["commands"][0].as_str().unwrap();
    assert!(!line.contains("--compress") && !line.contains("reduce_dtype"), "{line}");
    // Adan has 16 bytes of state beside the master's 4, AdamW 8.
    let state = |plan: &serde_json::Value| plan["plan"]["best"][0]["memory"]["optimizer"].as_f64().unwrap();
    let flags = "--zero 1 --micro-batch-size 1 --recompute none";
    let (adan, adamw) = (json(flags), json(&format!("{flags} --optimizer-bytes 8")));
    assert!((state(&adan) / state(&adamw) - 20.0 / 12.0).abs() < 1e-3, "{adan}");
    assert_eq!(plan["notes"][0], plan["note"], "{plan}");
    // As a file, it is of the same model with the same settings, and what is planned.
    let line = "plan --model my.toml --cluster 1x2xL4 --pp 1 --sequence-length 16 --toml";
    let text = place.succeed(&mut place.brigade(line)).out;
    assert!(text.contains("\n# note: some parameters are frozen"), "{text}");
    let planned: toml::Table = text.parse().unwrap();
    let (model, optimizer) = (&planned["model"], planned["optimizer"]["name"].as_str());
    assert_eq!((model["width"].as_integer(), optimizer), (Some(64), Some("adan")), "{planned}");
    assert_eq!(model["sequence_length"].as_integer(), Some(16), "{planned}");
    let other = json("--global-batch-size 8 --dtype f32 --reduce-dtype f32");
    assert_eq!((&other["global_batch"], &other["dtype"]), (&8.into(), &"fp32".into()), "{other}");
    let line = other["commands"][0].as_str().unwrap();
    assert!(line.contains("--compress none"), "{line}");
    std::fs::write(place.path("wrong.toml"), file.replace("[comm]", "[comm]\ncompress_ratio = 2.0")).unwrap();
    let done = place.run(&mut place.brigade("plan --model wrong.toml --cluster 1x2xL4"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("comm.compress_ratio = 2 is not possible"), "{}", done.err);
}

#[test]
fn only_what_is_trained_counts_as_trained() {
    let place = Place::new();
    let file =
        "[model]\nwidth = 64\nlayers = 2\nheads = 2\nvocabulary = 300\nsequence_length = 32\n[train]\n";
    std::fs::write(place.path("all.toml"), file).unwrap();
    std::fs::write(place.path("part.toml"), format!("{file}freeze = [\"embedding.*\"]\n")).unwrap();
    let json = |name: &str| -> serde_json::Value {
        let line =
            format!("plan --model {name} --cluster 1x1xL4 --global-batch-size 8 --sequence-length 32 --json");
        serde_json::from_str(&place.succeed(&mut place.brigade(&line)).out).unwrap()
    };
    let (all, part) = (json("all.toml"), json("part.toml"));
    assert!(part["note"].is_null() && all["parameters"] == part["parameters"], "{part}");
    let table: u64 = 64 * (300 + 32);
    assert_eq!(part["model"]["counts"][0], serde_json::json!({ "trained": 0, "frozen": table }));
    // Masters and two moments.
    let state = |plan: &serde_json::Value| plan["plan"]["best"][0]["memory"]["optimizer"].as_u64().unwrap();
    assert_eq!(state(&all) - state(&part), 12 * table);
    let refused = place.run(&mut place.brigade("plan --model all.toml --cluster 1x1xL4 --lora-rank 4"));
    assert!(refused.err.contains("adapters need a trained model; give one with --model"), "{}", refused.err);
}

#[test]
fn a_file_is_planned_as_it_would_be_trained() {
    let place = Place::new();
    let file = |name: &str, text: &str| {
        let path = place.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let plan = |name: &str| {
        let mut command =
            place.brigade(&format!("plan --model {name} --cluster 1x2xL4 --global-batch-size 8"));
        place.run(command.env("HF_HUB_CACHE", place.path("cache")).env("HF_HUB_OFFLINE", "1"))
    };
    let model = "[model]\nwidth = 64\nlayers = 2\nheads = 2\nvocabulary = 300\nsequence_length = 128\n";
    // A new GPT gets as many positions as its sequences have tokens.
    file("gpt.toml", model);
    let [own, longer] = ["gpt.toml", "gpt.toml --sequence-length 256"].map(|line| plan(line).out);
    assert!(!longer.contains("positions, so training refuses"), "{longer}");
    let parameters = |out: &str| out.lines().next().unwrap().to_owned();
    assert_ne!(parameters(&own), parameters(&longer));
    // Those of other strategies are not planned.
    for strategy in ["name = \"local-sgd\"", "name = \"diloco\"\nworkers = 2", "name = \"async-server\""] {
        file("other.toml", &format!("{model}[strategy]\n{strategy}\n"));
        let done = plan("other.toml");
        assert!(
            done.code == Some(2)
                && done.err.contains("only steps in which all ranks make an update together"),
            "{}",
            done.err
        );
    }
    // Nor steps without an update.
    file("other.toml", &format!("{model}[train]\nsync_every = 4\n"));
    let done = plan("other.toml");
    assert!(
        done.code == Some(2) && done.err.contains("train.sync_every = 4, but only steps"),
        "{}",
        done.err
    );
    // What training would refuse is said.
    file("wrong.toml", &format!("{model}[optimizer]\nnmae = \"adan\"\n"));
    let done = plan("wrong.toml");
    assert!(
        done.code == Some(0) && done.err.contains("note: training would refuse this file"),
        "{}",
        done.err
    );
    assert!(done.err.contains("`optimizer.nmae`"), "{}", done.err);
    // A model on the hub, in the cache.
    let commit = "a".repeat(40);
    file("cache/models--org--model/refs/main", &commit);
    let llama = r#"{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000 }"#;
    file(&format!("cache/models--org--model/snapshots/{commit}/config.json"), llama);
    file("hub.toml", "[model]\npath = \"org/model\"\n");
    let done = plan("hub.toml");
    assert!(done.code == Some(0) && done.out.contains("tokens/s"), "{}{}", done.out, done.err);
    // Rows are as long as the file says, also of a model that could take longer ones, and beyond what is usual.
    file("rows.toml", "[model]\npath = \"org/model\"\nsequence_length = 512\n");
    file("long.toml", &model.replace("128", "8192"));
    for (line, said) in [
        ("rows.toml", "8 sequences of 512 tokens in a step"),
        ("rows.toml --sequence-length 256", "8 sequences of 256 tokens in a step"),
        ("long.toml", "8 sequences of 8192 tokens in a step"),
    ] {
        let done = plan(line);
        assert!(done.out.contains(said), "{line}: {}{}", done.out, done.err);
    }
}

#[test]
fn plans_that_cannot_be() {
    let place = Place::new();
    std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs"), place.path("configs"))
        .unwrap();
    let plan = |flags: &str| {
        let mut command = place.brigade(&format!("plan {flags}"));
        command.env("XDG_CONFIG_HOME", place.path("settings"));
        place.run(&mut command)
    };
    for (flags, code, said) in [
        ("--model configs/gpt-13m.toml --cluster 2x8xH10", 2, "did you mean H100-80GB?"),
        ("--model configs/gpt-13m.toml", 2, "run --calibrate to measure this machine"),
        ("--model configs/gpt-13m.toml --cluster 1x1xL4 --zero 4", 2, "it must be 0, 1, 2 or 3"),
        ("--model configs/gpt-13m.toml --cluster 1x1xL4 --slow-rank 1=2", 2, "ranks 0 to 0"),
        ("--model configs/gpt-13m.toml --cluster 1x1xL4 --accounting x", 2, "separate-sums"),
        (
            "--model nowhere.toml --cluster 1x1xL4",
            2,
            "nowhere.toml: neither a folder, a file nor organization/name",
        ),
        ("--model configs/gpt-13m.toml --cluster 1x1xL4 --pp 1,x", 2, "a whole number of at least 1"),
        ("--cluster 1x1xL4", 2, "--model"),
        ("--model configs/gpt-13m.toml --cluster 1x4xL4 --checkpoint-every 0", 2, "--checkpoint-every = 0"),
        ("--model configs/gpt-13m.toml --cluster 1x4xL4 --zero 0 --replicate 2", 2, "--zero 0 --replicate 2"),
    ] {
        let done = plan(flags);
        assert_eq!(done.code, Some(code), "{flags}: {}", done.err);
        assert!(done.err.contains(said), "{flags}: {}", done.err);
    }
    // A model that fits nowhere is no mistake of the command's user, and yet no success.
    let large = "[model]\nwidth = 65536\nlayers = 200\nheads = 64\nvocabulary = 50000\n";
    std::fs::write(place.path("large.toml"), large).unwrap();
    let done = plan("--model large.toml --cluster 1x2xL4 --global-batch-size 2 --sequence-length 128");
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.out.contains("No configuration fits") && done.out.contains("lacks"), "{}", done.out);
}

#[test]
fn a_machine_is_measured_for_later_plans() {
    let place = Place::new();
    std::os::unix::fs::symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs"), place.path("configs"))
        .unwrap();
    let brigade = |line: &str| {
        let mut command = place.brigade(line);
        command.env("XDG_CONFIG_HOME", place.path("settings"));
        place.succeed(&mut command).out
    };
    let text = brigade("plan --calibrate");
    assert!(text.contains("fp32_tflops") && text.contains("settings/brigade/cluster.toml"), "{text}");
    let text = brigade("plan --model configs/gpt-tiny.toml --global-batch-size 64");
    assert!(text.contains("cluster.toml: 1 node of") && text.contains("brigade train --config"), "{text}");
}

#[test]
fn a_run_shows_how_fast_a_machine_is() {
    let place = Place::new();
    let brigade = |line: &str| {
        let mut command = place.brigade(line);
        command.env("XDG_CONFIG_HOME", place.path("settings"));
        command
    };
    place.succeed(&mut place.train("--nproc-per-node 2 --zero 2 --steps 20 --out run"));
    let text = place.succeed(&mut brigade("plan --calibrate-from run")).out;
    for said in
        ["Measured from the run run: pp 1 dp 2 zero 2", "times as fast", "settings/brigade/cluster.toml"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    // What was learned is what later plans count with.
    let text =
        place.succeed(&mut brigade("plan --model tiny.toml --global-batch-size 8 --sequence-length 16")).out;
    assert!(text.contains("cluster.toml: 1 node of 2 CPU"), "{text}");
    let kept = place.text("settings/brigade/cluster.toml");
    let metrics = place.text("run/metrics.jsonl");
    let lines: Vec<&str> = metrics.lines().collect();
    let cut = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let half = &lines[3][..lines[3].len() / 2];
    let damaged = format!("{}{half}\n{}", cut(&lines[..3]), cut(&lines[4..]));
    for (metrics, flags, said) in [
        (None, "run", "run has no metrics.jsonl"),
        (Some(cut(&lines[..2])), "run", "calibration needs 5"),
        (Some(damaged), "run", "has a line that cannot be read"),
        (Some(cut(&lines)), "run --cluster 1x2xH100", "computed on processors, but --cluster 1x2xH100"),
        (Some(cut(&lines)), "run --cluster 1x4xCPU", "has 4 devices, but the run run had 2 ranks"),
        (Some(cut(&lines)), "nowhere", "nowhere is not a folder"),
    ] {
        std::fs::remove_file(place.path("run/metrics.jsonl")).ok();
        if let Some(metrics) = metrics {
            std::fs::write(place.path("run/metrics.jsonl"), metrics).unwrap();
        }
        let done = place.run(&mut brigade(&format!("plan --calibrate-from {flags}")));
        assert_eq!((done.code, done.err.lines().count()), (Some(2), 1), "{flags}: {}", done.err);
        assert!(done.err.contains(said), "{flags}: {}", done.err);
    }
    // A last line that is being written is left out, and nothing that is wrong changes what is kept.
    assert_eq!(place.text("settings/brigade/cluster.toml"), kept);
    std::fs::write(place.path("run/metrics.jsonl"), format!("{}{half}", cut(&lines))).unwrap();
    place.succeed(&mut brigade("plan --calibrate-from run"));
    // Several hosts are not this machine.
    let history = place.text("run/history.jsonl");
    let delayed =
        history.replace("\"event\":\"started\"", "\"event\":\"started\",\"network_delay_seconds\":0.002");
    assert_ne!(delayed, history);
    std::fs::write(place.path("run/history.jsonl"), delayed).unwrap();
    let done = place.run(&mut brigade("plan --calibrate-from run"));
    assert_eq!(done.code, Some(2), "{}", done.err);
    let said = "the run run was on several hosts; name them, as in --cluster 2x1xCPU";
    assert!(done.err.contains(said), "{}", done.err);
    place.succeed(&mut brigade("plan --calibrate-from run --cluster 2x1xCPU"));
}
