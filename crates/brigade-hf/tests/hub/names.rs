//! Names of models, and what the environment says.

use std::fs;
use std::path::Path;

use brigade_hf::hub::{Hub, ModelName};

use super::{folder, hub, message, name};

#[test]
fn names_have_an_organization_and_perhaps_a_revision() {
    for (text, repository, revision) in [
        ("gpt2", "gpt2", "main"),
        ("org/model-7B_v0.1", "org/model-7B_v0.1", "main"),
        ("org/model@refs/pr/3", "org/model", "refs/pr/3"),
    ] {
        let name = name(text);
        assert_eq!(
            (name.repository(), name.revision(), name.to_string().as_str()),
            (repository, revision, text)
        );
    }
    for text in
        ["", "a/b/c", "org/", "/model", "org/..", "org/model@", "org/model@a/../b", "org/mo del", "./model/x"]
    {
        let message = text.parse::<ModelName>().unwrap_err().to_string();
        assert!(
            message
                .contains("it is neither a folder nor the name of a model on the hub, `organization/name`"),
            "{message}"
        );
    }
}

#[test]
fn the_environment_says_where_models_are() {
    let variables = |set: &'static [(&str, &str)]| {
        Hub::from_variables(move |name| {
            set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        })
    };
    let plain = variables(&[("HOME", "/home/me")]).unwrap();
    assert_eq!(plain.cache, Path::new("/home/me/.cache/huggingface/hub"));
    assert_eq!(
        (plain.endpoint.as_str(), plain.token, plain.offline),
        ("https://huggingface.co", None, false)
    );
    let moved = variables(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/caches")]).unwrap();
    assert_eq!(moved.cache, Path::new("/caches/huggingface/hub"));
    let home =
        variables(&[("HF_HOME", "/hf"), ("HF_HUB_OFFLINE", "yes"), ("HF_ENDPOINT", "https://mirror/")])
            .unwrap();
    assert_eq!(
        (home.cache.as_path(), home.offline, home.endpoint.as_str()),
        (Path::new("/hf/hub"), true, "https://mirror")
    );
    for (given, expected) in [
        ("~/models", "/home/me/models"),
        ("~", "/home/me"),
        ("~you/models", "~you/models"),
        ("$SCRATCH/hf", "/scratch/hf"),
        ("/a/${SCRATCH}b/$NONE", "/a//scratchb/$NONE"),
        ("/a$", "/a$"),
    ] {
        let set = [("HOME", "/home/me"), ("SCRATCH", "/scratch"), ("HF_HUB_CACHE", given)];
        let hub = Hub::from_variables(|name| {
            set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(hub.unwrap().cache, Path::new(expected), "{given}");
    }
    let all = variables(&[
        ("HF_HOME", "/hf"),
        ("HF_HUB_CACHE", "/cache"),
        ("HF_TOKEN", " secret\n"),
        ("HF_HUB_OFFLINE", "0"),
    ]);
    let all = all.unwrap();
    assert_eq!(
        (all.cache.as_path(), all.token.as_deref(), all.offline),
        (Path::new("/cache"), Some("secret"), false)
    );
    let message = variables(&[]).unwrap_err().to_string();
    assert!(message.contains("none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set"), "{message}");
}

#[test]
fn the_token_may_be_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("token"), "from a file\n").unwrap();
    let home = folder.path().to_string_lossy().into_owned();
    let hub = Hub::from_variables(|name| (name == "HF_HOME").then(|| home.clone())).unwrap();
    assert_eq!(hub.token.as_deref(), Some("from a file"));
    let mounted = folder.path().join("mounted").to_string_lossy().into_owned();
    fs::write(&mounted, "mounted\n").unwrap();
    let variables = |names: &[&str]| {
        let value = |name: &str| match name {
            "HF_TOKEN_PATH" => mounted.clone(),
            "HF_TOKEN" => "given".into(),
            _ => home.clone(),
        };
        let hub = Hub::from_variables(|name| names.contains(&name).then(|| value(name))).unwrap();
        hub.token.unwrap()
    };
    assert_eq!(variables(&["HF_HOME", "HF_TOKEN_PATH"]), "mounted");
    assert_eq!(variables(&["HF_HOME", "HF_TOKEN_PATH", "HF_TOKEN"]), "given");
}

#[test]
fn without_the_network_the_message_says_what_is_there() {
    let (mut hub, _folder) = hub("http://127.0.0.1:9");
    hub.offline = true;
    let message_of = |hub: &Hub| message(hub);
    assert_eq!(
        message_of(&hub),
        format!(
            "the model `org/model`: it is not complete in the cache {} (no revision is cached), and HF_HUB_OFFLINE \
            forbids downloading it",
            hub.cache.display()
        )
    );
    let model = hub.cache.join("models--org--model");
    let (commit, other) = ("a".repeat(40), "b".repeat(40));
    for (file, content) in [
        ("refs/v1", other.as_str()),
        ("refs/pr/1", other.as_str()),
        ("refs/main", commit.as_str()),
        (&format!("snapshots/{commit}/config.json"), "{}"),
    ] {
        fs::create_dir_all(model.join(file).parent().unwrap()).unwrap();
        fs::write(model.join(file), content).unwrap();
    }
    let message = message_of(&hub);
    assert!(message.contains(" without `model.safetensors` (it has aaaaaaaa"), "{message}");
    assert!(message.contains(", main, pr/1, v1), and HF_HUB_OFFLINE"), "{message}");
    let snapshot = model.join("snapshots").join(&commit);
    fs::write(snapshot.join("model.safetensors.index.json"), r#"{"weight_map": {"a": "1.safetensors"}}"#)
        .unwrap();
    assert!(message_of(&hub).contains(" without `1.safetensors` ("));
    fs::write(snapshot.join("1.safetensors"), "").unwrap();
    assert_eq!(folder(&hub).unwrap(), snapshot);
    assert_eq!(hub.cached(&name(&format!("org/model@{commit}"))), Some(snapshot));
    assert_eq!(hub.cached(&name("org/model@v1")), None);
}
