//! Dry runs.

use std::fs;

use super::program;
use crate::place::{Done, Place};

fn dry_run(place: &Place, line: &str) -> Done {
    // No other programs than the test's own.
    place.run(place.brigade(&format!("submit --dry-run {line}")).env("PATH", place.path("bin")))
}

#[test]
fn a_dry_run_says_whether_the_model_fits_and_what_is_missing() {
    let place = Place::new();
    let job = "--to jobset --nodes 2 --gpus 8 --gpu-kind h100-80gb --image ghcr.io/me/brigade:1 --volume data:/data";
    let large = "--set model.sequence_length=2048 --set model.width=4096 --set model.layers=32 --set model.heads=32 --global-batch-size 64 --zero 3";
    program(&place, "kubectl", "echo created by the server \"$@\"");
    let done = dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a {large}"));
    assert_eq!(done.code, Some(0), "{}", done.err);
    for said in [
        "# jobset.json",
        "\"JobSet\"",
        "2x8xH100-80GB: 2 nodes of 8 H100-80GB",
        "The command as it is, pp 1 dp 16 zero 3",
        "hours as it is",
        "cost: give the price that you pay with --price-per-gpu-hour",
        "submit:  kubectl create -f jobset.json",
        "kubectl would take the job",
        "not checked: whether ghcr.io/me/brigade:1 has the backend cuda",
    ] {
        assert!(done.out.contains(said), "{said}: {}", done.out);
    }
    program(&place, "kubectl", "echo asked: \"$@\", and the quota is exceeded >&2; exit 1");
    let done = dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a {large}"));
    for said in [
        "missing: the cluster did not accept it: kubectl create --dry-run=server -f ",
        "/jobset.json ended with exit status: 1: asked: create --dry-run=server -f ",
        "/jobset.json, and the quota is exceeded",
    ] {
        assert!(done.code == Some(1) && done.out.contains(said), "{}{}", done.out, done.err);
    }
    let server = r#"case "$*" in *" secret/"*) echo 'Error from server (NotFound): secrets "brigade-token" not found' >&2; exit 1 ;; esac"#;
    program(&place, "kubectl", server);
    let done = dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a {large}"));
    let said = "missing: secret/brigade-token, which is not in the cluster\n";
    assert!(done.code == Some(1) && done.out.contains(said), "{}{}", done.out, done.err);
    program(&place, "kubectl", "exit 0");
    // The GPU hours that are shown are rounded.
    let large_job = format!("{job} -- train --config tiny.toml --out /data/runs/a {large} --steps 100000");
    let done = dry_run(&place, &format!("--price-per-gpu-hour 2.5 {large_job}"));
    let number = |after: &str| {
        let rest = done.out.split_once(after).unwrap_or_else(|| panic!("{after}: {}", done.out)).1;
        rest.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    let (hours, cost) = (number("hours as it is, "), number("\ncost: "));
    assert!(hours > 10.0 && (cost - 2.5 * hours).abs() <= 2.5 * 0.51, "{hours} GPU hours, {cost}");
    for price in ["-1", "much", "inf"] {
        let done = dry_run(&place, &format!("--price-per-gpu-hour {price} {large_job}"));
        assert!(
            done.code == Some(2)
                && done.err.contains("--price-per-gpu-hour")
                && done.err.contains("0 or more"),
            "{price}: {}",
            done.err
        );
    }
    // What training would refuse, or what would not fit into a GPU, is missing.
    for (flags, said) in [
        (
            "--zero 0",
            "of memory on each rank of its fullest stage, for the command as it is; the plans above fit",
        ),
        ("--pp 3", "missing: a valid training command: mesh (--pp, --dp) = pp 3"),
        ("--micro-batch-size 3", "missing: a valid training command: train.global_batch_size"),
        ("--set train.stepz=5", "missing: a valid training command: --set train.stepz=5"),
    ] {
        let without = large_job.replace(" --zero 3", "");
        let done = dry_run(&place, &format!("{without} {flags}"));
        assert!(done.code == Some(1) && done.out.contains(said), "{flags}: {}{}", done.out, done.err);
    }
    let small = job.replace("--nodes 2 --gpus 8 --gpu-kind h100-80gb", "--nodes 1 --gpus 1 --gpu-kind l4");
    let done = dry_run(
        &place,
        &format!("{small} -- train --config tiny.toml --out /data/runs/a {large} --set model.layers=96"),
    );
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.out.contains("No configuration fits"), "{}", done.out);
    let vertex = "--to vertex --region europe-west4 --gpus 8 --gpu-kind a100-80gb --image b:1";
    let long = format!("-- train --config tiny.toml --out gs://bucket/a {large} --steps 100000000");
    let done = dry_run(&place, &format!("{vertex} {long}"));
    assert!(done.out.contains("the job would be stopped after 168 hours, before "), "{}", done.out);
    let done = dry_run(&place, &format!("{vertex} --time 2-0 {long}"));
    assert!(done.out.contains("the job would be stopped after 48 hours, before "), "{}", done.out);
    fs::remove_file(place.path("bin/kubectl")).unwrap();
    let done =
        dry_run(&place, &format!("{job} -- train --config tiny.toml --out /data/runs/a --model /nowhere"));
    let lacks = done.out.contains("no plan: --model /nowhere is not on this machine")
        && done.out.contains("missing: kubectl is not installed on this machine");
    assert!(done.code == Some(1) && lacks, "{}", done.out);
}

#[test]
fn a_dry_run_names_all_that_was_not_given_and_plans() {
    let place = Place::new();
    let job = "--to vertex --nodes 2 --gpus 8 --gpu-kind a100-80gb -- train --config tiny.toml --global-batch-size 64";
    let done = dry_run(&place, job);
    for said in [
        "missing: --out is needed: ",
        "missing: --image is needed: ",
        "missing: --region is needed: ",
        "missing: --token-file is needed: ",
        "missing: gcloud is not installed on this machine",
        "2x8xA100-80GB: 2 nodes of 8 A100-80GB",
    ] {
        assert!(done.code == Some(1) && done.out.contains(said), "{said}: {}{}", done.out, done.err);
    }
    assert!(!done.out.contains("# vertex.json"), "{}", done.out);
}

#[test]
fn a_plan_names_no_file_that_was_not_given() {
    let place = Place::new();
    let job = "--to jobset --gpus 8 --gpu-kind h100-80gb --image b:1 --volume data:/data";
    let train = "train --out /data/a --global-batch-size 64 --set data.tokenizer=bytes";
    let done = dry_run(&place, &format!("{job} -- {train}"));
    let said = "run     brigade train --nproc-per-node 8 ";
    assert!(done.out.contains(said) && !done.out.contains("my.toml"), "{}{}", done.out, done.err);
    // Whose settings the nodes get as words.
    let done = dry_run(&place, &format!("{job} -- {train} --config tiny.toml"));
    assert!(done.out.contains(said) && !done.out.contains("my.toml"), "{}{}", done.out, done.err);
}

/// Its configuration is in the cache, its weights need not be.
#[test]
fn a_dry_run_plans_a_model_of_the_hub() {
    let place = Place::new();
    let commit = "a".repeat(40);
    let model = place.path("cache/models--org--model");
    let llama = r#"{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;
    let files =
        [("refs/main".to_owned(), commit.as_str()), (format!("snapshots/{commit}/config.json"), llama)];
    for (file, content) in files {
        let path = model.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let line = "submit --dry-run --to jobset --gpus 1 --gpu-kind l4 --image b:1 --volume data:/data -- train --model org/model --data /data/text --out /data/a";
    let mut command = place.brigade(line);
    command
        .env("PATH", place.path("bin"))
        .env("HF_HUB_CACHE", place.path("cache"))
        .env("HF_HUB_OFFLINE", "1");
    let done = place.run(&mut command);
    assert!(done.out.contains("1x1xL4") && !done.out.contains("no plan"), "{}{}", done.out, done.err);
    assert!(!done.out.contains("the containers do not see"), "{}", done.out);
}

#[test]
fn a_dry_run_of_an_elastic_job_is_planned_for_the_least_nodes_as_well() {
    let place = Place::new();
    let line = |layers: usize, width: usize| {
        let model = format!(
            "--set model.width={width} --set model.layers={layers} --set model.heads=32 --set model.sequence_length=2048"
        );
        let job = "--to ssh --nodes 1:4 --gpus 8 --hosts a,b,c,d --gpu-kind h100-80gb";
        format!("{job} -- train --config tiny.toml --out /data/a --global-batch-size 64 {model}")
    };
    let fits = dry_run(&place, &line(32, 4096)).out;
    let said = "with 1 node, while the others are missing: ";
    assert!(fits.contains(said) && !fits.contains("would go on"), "{fits}");
    // 32 GPUs hold its gradients, 8 do not.
    let too_large = dry_run(&place, &line(300, 8192));
    assert_eq!(too_large.code, Some(1), "{}", too_large.out);
    let said = "missing: a configuration that fits 1 node, with which the run would go on (--nodes 1:4)";
    assert!(too_large.out.contains(said), "{}", too_large.out);
}
