//! Downloads: whole, interrupted, damaged, refused.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use brigade_hf::hub::{Hub, Progress};
use serde_json::json;

use super::server::{COMMIT, Fault, Server, sha256};
use super::{folder, hub, message, name};

const INDEX: &[u8] = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#;

/// Weights that no request gets at once.
fn weights(seed: u8) -> Vec<u8> {
    (0..3_000_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect()
}

fn one_file(content: &[u8]) -> Server {
    Server::start(&[("config.json", b"{}"), ("model.safetensors", content)])
}

#[test]
fn a_model_is_downloaded_into_the_layout_of_the_cache_and_then_found_there() {
    let (first, second) = (weights(0), weights(1));
    let server = Server::start(&[
        ("config.json", b"{\"a\": 1}"),
        ("tokenizer.json", b"{}"),
        ("README.md", b"text"),
        ("additional_chat_templates/tool_use.jinja", b"tools"),
        ("additional_chat_templates/../a.jinja", b"no"),
        ("additional_chat_templates/notes.txt", b"no"),
        ("model.safetensors.index.json", INDEX),
        ("model-1.safetensors", &first),
        ("model-2.safetensors", &second),
        ("model-3.safetensors", &second),
    ]);
    let (hub, _folder) = hub(&server.endpoint);
    let mut last = None;
    let mut note =
        |progress: Progress<'_>| last = Some((progress.file.to_owned(), progress.bytes, progress.of));
    let found = hub.folder(&name("org/model"), &mut note).unwrap().path;
    assert_eq!(last, Some(("model-2.safetensors".to_owned(), 3_000_000, 3_000_000)));
    let model = hub.cache.join("models--org--model");
    assert_eq!(found, model.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read(found.join("config.json")).unwrap(), b"{\"a\": 1}");
    assert_eq!(fs::read(found.join("model-2.safetensors")).unwrap(), second);
    let link = fs::read_link(found.join("model-1.safetensors")).unwrap();
    assert_eq!(link.to_string_lossy(), format!("../../blobs/{}", sha256(&first)));
    assert!(!found.join("README.md").exists() && !found.join("model-3.safetensors").exists());
    let templates = found.join("additional_chat_templates");
    assert_eq!(fs::read(templates.join("tool_use.jinja")).unwrap(), b"tools");
    assert_eq!(fs::read_dir(templates).unwrap().count(), 1);
    assert!(fs::read_dir(model.join("blobs")).unwrap().count() == 6);
    assert!(!server.requests().is_empty());
    assert_eq!(folder(&hub).unwrap(), found);
    let at_commit = hub.folder(&name(&format!("org/model@{COMMIT}")), &mut |_| ()).unwrap();
    assert_eq!((at_commit.path, at_commit.note), (found, None));
    assert_eq!(server.requests(), [], "it is in the cache");
}

#[test]
fn adapters_without_their_model_are_whole() {
    let adapters = weights(0);
    let files: [(&str, &[u8]); 5] = [
        ("adapter_config.json", b"{}"),
        ("adapter_model.safetensors", &adapters),
        ("labels.json", b"{\"l\": 1}"),
        ("tokenizer.json", b"{}"),
        ("training_args.bin", b"no"),
    ];
    let server = Server::start(&files);
    let (hub, _folder) = hub(&server.endpoint);
    let configuration = hub.configuration(&name("org/model"), &mut |_| ()).unwrap();
    assert!(configuration.join("adapter_model.safetensors").is_file());
    assert!(!configuration.join("tokenizer.json").exists());
    let without = hub.folder_without_weights(&name("org/model"), &mut |_| ()).unwrap();
    assert_eq!((without.path, without.note), (configuration.clone(), None));
    assert_eq!(fs::read(configuration.join("tokenizer.json")).unwrap(), b"{}");
    let found = folder(&hub).unwrap();
    assert_eq!(fs::read(found.join("adapter_model.safetensors")).unwrap(), adapters);
    assert_eq!(fs::read(found.join("labels.json")).unwrap(), b"{\"l\": 1}");
    assert!(!found.join("training_args.bin").exists());
    server.requests();
    let offline = Hub { offline: true, ..hub.clone() };
    assert_eq!((folder(&offline).unwrap(), folder(&hub).unwrap()), (found.clone(), found.clone()));
    assert_eq!(server.requests(), [], "it is in the cache");
    fs::remove_file(found.join("adapter_model.safetensors")).unwrap();
    assert!(message(&offline).contains("without `adapter_model.safetensors`"), "{}", message(&offline));
    server.state().files.remove("adapter_model.safetensors");
    server.state().files.insert("adapter_model.bin".into(), b"pickle".to_vec());
    let said = message(&hub);
    assert!(
        said.contains("but no adapter_model.safetensors (adapter_model.bin is a Python pickle"),
        "{said}"
    );
}

/// As `AutoModel.from_pretrained` leaves a model in the cache.
#[test]
fn what_lies_beside_a_cached_model_is_fetched_unless_the_hub_is_out_of_reach() {
    let weights = weights(0);
    let files: [(&str, &[u8]); 3] =
        [("config.json", b"{}"), ("tokenizer.json", b"{\"a\": 1}"), ("model.safetensors", &weights)];
    let server = Server::start(&files);
    let (hub, _folder) = hub(&server.endpoint);
    let found = folder(&hub).unwrap();
    fs::remove_file(found.join("tokenizer.json")).unwrap();
    let offline = Hub { offline: true, ..hub.clone() };
    assert_eq!(folder(&offline).unwrap(), found);
    assert!(!found.join("tokenizer.json").exists());
    let unreachable = Hub { endpoint: "http://127.0.0.1:9".to_owned(), ..hub.clone() };
    let without = unreachable.folder(&name("org/model"), &mut |_| ()).unwrap();
    assert_eq!(without.path, found);
    let note = without.note.unwrap();
    assert!(
        note.starts_with(
            "org/model has no tokenizer.json in the cache, and the hub could not be asked for it"
        ),
        "{note}"
    );
    server.fail("?blobs=true", [Fault::Status(503)]);
    server.requests();
    assert!(hub.folder(&name("org/model"), &mut |_| ()).unwrap().note.is_some());
    assert_eq!(server.requests().len(), 1, "a model does without, so that the hub is asked once");
    // Of the commit that is there, whatever the branch is now.
    server.state().head = "f".repeat(40);
    assert_eq!(folder(&hub).unwrap(), found);
    assert_eq!(fs::read(found.join("tokenizer.json")).unwrap(), b"{\"a\": 1}");
    assert!(server.requests().iter().all(|request| !request.path.ends_with("model.safetensors")));
    // A hub that has none is no reason for a note.
    fs::remove_file(found.join("tokenizer.json")).unwrap();
    server.state().files.remove("tokenizer.json");
    assert_eq!(hub.folder(&name("org/model"), &mut |_| ()).unwrap(), found.into());
}

#[test]
fn what_is_cut_off_goes_on_where_it_ended() {
    let content = weights(0);
    let server = one_file(&content);
    server.fail("/large/model.safetensors", [Fault::Cut(1_200_000), Fault::Cut(900_000), Fault::Status(503)]);
    let (hub, _folder) = hub(&server.endpoint);
    let found = folder(&hub).unwrap();
    assert_eq!(fs::read(found.join("model.safetensors")).unwrap(), content);
    let starts: Vec<_> = server
        .requests()
        .iter()
        .filter(|request| request.path.contains("/large/"))
        .map(|request| request.start)
        .collect();
    assert_eq!(starts, [0, 1_200_000, 2_100_000, 2_100_000]);
}

#[test]
fn an_earlier_download_goes_on_even_where_the_server_begins_again() {
    let content = weights(0);
    for (fault, begun) in
        [(None, &content[..1000]), (Some(Fault::WithoutRange), &content[..1000]), (None, &content[..])]
    {
        let server = one_file(&content);
        server.fail("/large/model.safetensors", fault);
        let (hub, _folder) = hub(&server.endpoint);
        let blobs = hub.cache.join("models--org--model/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", sha256(&content))), begun).unwrap();
        let found = folder(&hub).unwrap();
        assert_eq!(fs::read(found.join("model.safetensors")).unwrap(), content);
        let starts: Vec<_> = server
            .requests()
            .into_iter()
            .filter(|request| request.path.contains("/large/"))
            .map(|request| request.start)
            .collect();
        assert_eq!(starts, if begun.len() < content.len() { vec![1000] } else { vec![] });
    }
}

#[test]
fn a_plan_needs_no_weights() {
    let content = weights(0);
    let server = one_file(&content);
    let (mut hub, _folder) = hub(&server.endpoint);
    let name = name("org/model");
    let found = hub.configuration(&name, &mut |_| ()).unwrap();
    assert!(found.join("config.json").is_file() && !found.join("model.safetensors").exists());
    assert_eq!(hub.cached(&name), None);
    server.requests();
    assert_eq!(hub.configuration(&name, &mut |_| ()).unwrap(), found);
    assert!(server.requests().is_empty(), "it is in the cache");
    assert_eq!(fs::read(folder(&hub).unwrap().join("model.safetensors")).unwrap(), content);
    hub.offline = true;
    assert_eq!(hub.configuration(&name, &mut |_| ()).unwrap(), found);
}

#[test]
fn a_dry_run_needs_what_stands_beside_weights() {
    let content = weights(0);
    let server = Server::start(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"a\": 1}"),
        ("tokenizer_config.json", b"{}"),
        ("model.safetensors", &content),
    ]);
    let name = name("org/model");
    for begins_with_configuration in [false, true] {
        let (hub, _folder) = hub(&server.endpoint);
        if begins_with_configuration {
            hub.configuration(&name, &mut |_| ()).unwrap();
        }
        server.requests();
        let found = hub.folder_without_weights(&name, &mut |_| ()).unwrap();
        assert_eq!(found.note, None);
        assert_eq!(fs::read(found.path.join("tokenizer.json")).unwrap(), b"{\"a\": 1}");
        assert!(found.path.join("tokenizer_config.json").is_file());
        assert!(!found.path.join("model.safetensors").exists());
        assert!(server.requests().iter().all(|request| !request.path.ends_with("model.safetensors")));
        assert_eq!(hub.folder_without_weights(&name, &mut |_| ()).unwrap(), found);
        assert!(server.requests().is_empty(), "it is in the cache");
    }
}

#[test]
fn what_is_damaged_is_removed_and_downloaded_again() {
    let content = weights(0);
    let server = one_file(&content);
    server.fail("/large/model.safetensors", [Fault::Damaged]);
    let (hub, _folder) = hub(&server.endpoint);
    let text = message(&hub);
    assert!(
        text.contains("`model.safetensors` has the SHA-256 ") && text.ends_with("; it was removed"),
        "{text}"
    );
    let blobs = hub.cache.join("models--org--model/blobs");
    assert!(!blobs.join(format!("{}.incomplete", sha256(&content))).exists());
    assert!(!hub.cache.join("models--org--model/refs/main").exists());
    // Git's own hash is that of a small file.
    server.fail("/config.json", [Fault::Damaged]);
    let (hub, _folder) = super::hub(&server.endpoint);
    let text = message(&hub);
    assert!(text.contains("`config.json` has the Git SHA-1 ") && text.contains(GIT_EMPTY_OBJECT), "{text}");
    assert_eq!(fs::read(folder(&hub).unwrap().join("model.safetensors")).unwrap(), content);
}

/// What `git hash-object` prints for a file of two braces.
const GIT_EMPTY_OBJECT: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";

#[test]
fn a_content_that_was_deleted_is_downloaded_again() {
    let content = weights(0);
    let server = one_file(&content);
    let (hub, _folder) = hub(&server.endpoint);
    let found = folder(&hub).unwrap();
    fs::remove_file(hub.cache.join("models--org--model/blobs").join(sha256(&content))).unwrap();
    assert_eq!(hub.cached(&name("org/model")), None);
    assert_eq!(fs::read(folder(&hub).unwrap().join("model.safetensors")).unwrap(), content);
    assert_eq!(folder(&hub).unwrap(), found);
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let server = one_file(b"weights");
    server.state().token = Some("secret".into());
    let (mut hub, _folder) = hub(&server.endpoint);
    let text = message(&hub);
    assert!(text.contains("restricts access, and HF_TOKEN may give access (401"), "{text}");
    hub.token = Some("other".into());
    assert!(message(&hub).contains("and this token does not give access (401"));
    hub.token = Some("secret".into());
    server.requests();
    folder(&hub).unwrap();
    for request in server.requests() {
        let expected = (!request.path.starts_with("/large/")).then(|| "Bearer secret".to_owned());
        assert_eq!(request.token, expected, "{}", request.path);
    }
}

#[test]
fn what_the_hub_does_not_have_is_said() {
    let server = Server::start(&[("config.json", b"{}"), ("pytorch_model.bin", b"")]);
    let (hub, _folder) = hub(&server.endpoint);
    let absent = hub.folder(&name("org/model@absent"), &mut |_| ()).unwrap_err().to_string();
    assert!(absent.starts_with("the model `org/model@absent`: http://127.0.0.1:"), "{absent}");
    assert!(
        absent.contains("has no such model or revision, or hides it: HF_TOKEN may give access (404"),
        "{absent}"
    );
    let pickle = message(&hub);
    assert!(
        pickle.ends_with("nor model.safetensors.index.json; pytorch_model.bin cannot be read"),
        "{pickle}"
    );
    let (hub, _folder) = super::hub(&server.endpoint);
    let config = br#"{"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}"#;
    server.state().files.insert("config.json".into(), config.to_vec());
    let pickle = message(&hub);
    assert!(pickle.contains("; pytorch_model.bin is a Python pickle, which may run any code"), "{pickle}");
    let command = format!(
        "python -c 'from transformers import AutoTokenizer, LlamaForSequenceClassification as Model; \
         [part.from_pretrained(\"org/model\", revision=\"{COMMIT}\").save_pretrained(\"model\") for part in (Model, AutoTokenizer)]'"
    );
    assert!(pickle.ends_with(&command), "{pickle}");
    server.state().files.remove("pytorch_model.bin");
    assert!(message(&hub).ends_with("nor model.safetensors.index.json"));
    server.state().files.remove("config.json");
    assert!(message(&hub).ends_with("it has neither config.json nor adapter_config.json"));
}

#[test]
fn a_hub_that_fails_is_asked_again_but_not_for_ever() {
    let server = one_file(b"weights");
    server.fail("?blobs=true", [Fault::Status(503), Fault::Status(429)]);
    let (hub, _folder) = hub(&server.endpoint);
    folder(&hub).unwrap();
    server.requests();
    let (hub, _folder) = super::hub(&server.endpoint);
    server.fail("?blobs=true", [Fault::Status(500); 3]);
    let text = message(&hub);
    assert!(text.contains(" answered 500 ") && text.ends_with("(3 times)"), "{text}");
    assert_eq!(server.requests().len(), 3);
    server.fail("?blobs=true", [Fault::Status(418)]);
    assert!(message(&hub).contains(" answered 418 "));
    assert_eq!(server.requests().len(), 1, "this will not pass");
    let (hub, _folder) = super::hub("http://127.0.0.1:9");
    let text = message(&hub);
    assert!(text.contains("cannot reach http://127.0.0.1:9: ") && text.ends_with("(3 times)"), "{text}");
}

#[test]
fn a_silent_hub_has_a_deadline() {
    let server = one_file(b"weights");
    server.fail("?blobs=true", [Fault::Silent(Duration::from_secs(60)); 3]);
    let (mut hub, _folder) = hub(&server.endpoint);
    hub.timeout = Duration::from_millis(100);
    let begun = Instant::now();
    let text = message(&hub);
    assert!(text.contains(": timeout"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn several_at_once_download_each_content_once() {
    let content = weights(0);
    let server = Arc::new(one_file(&content));
    let (hub, _folder) = hub(&server.endpoint);
    let ranks: Vec<_> = (0..4)
        .map(|_| {
            let hub = hub.clone();
            thread::spawn(move || folder(&hub).unwrap())
        })
        .collect();
    for rank in ranks {
        assert_eq!(fs::read(rank.join().unwrap().join("model.safetensors")).unwrap(), content);
    }
    let large = server.requests().into_iter().filter(|request| request.path.contains("/large/")).count();
    assert_eq!(large, 1);
}

#[test]
fn nothing_leaves_the_cache_whatever_the_hub_says() {
    let files = |name: &str, etag: &str| json!([{ "rfilename": name, "size": 2, "blobId": etag }, { "rfilename": "model.safetensors", "size": 2, "blobId": "x" }]);
    for (list, part) in [
        (json!({ "sha": "../../../commit", "siblings": [] }), "names the commit `../../../commit`"),
        (
            json!({ "sha": COMMIT, "siblings": files("config.json", "../../etag") }),
            "does not say what `config.json` contains",
        ),
        (
            json!({ "sha": COMMIT, "siblings": [{ "rfilename": "config.json" }, { "rfilename": "model.safetensors" }] }),
            "does not say what",
        ),
        (json!({ "other": 1 }), "did not answer with a list of files"),
    ] {
        let server = one_file(b"{}");
        server.state().list = Some(list);
        let (hub, _folder) = hub(&server.endpoint);
        let text = message(&hub);
        assert!(text.contains(part), "{text}");
    }
    let index = br#"{"weight_map": {"a": "../../../../x"}}"#;
    let server = Server::start(&[("config.json", b"{}"), ("model.safetensors.index.json", index)]);
    let (hub, _folder) = hub(&server.endpoint);
    assert!(message(&hub).ends_with("its model.safetensors.index.json lists no weight files"));
}
