//! The files in which AWS's own programs keep credentials and regions.
//!
//! Profiles with keys are read. Those that lead to keys by another way (a role, single sign-on, a program) are not.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// The profile that counts if `AWS_PROFILE` names no other.
const DEFAULT: &str = "default";

/// What makes the keys in the environment count, instead of those in files.
const BEFORE_FILES: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];

/// Keys by which requests are signed.
struct Keys {
    id: String,
    secret: String,
    token: Option<String>,
}

/// A profile: its settings, by their names.
type Profile = HashMap<String, String>;

/// Whether the files have keys for the chosen profile.
pub(crate) fn have_keys() -> bool {
    keys().is_some()
}

/// The name of the chosen profile.
pub(crate) fn profile_name() -> String {
    variable("AWS_PROFILE").unwrap_or_else(|| DEFAULT.into())
}

/// Adds the keys and the region of the chosen profile, where the environment has none.
pub(crate) fn complete(mut builder: AmazonS3Builder) -> AmazonS3Builder {
    if BEFORE_FILES.into_iter().all(|name| variable(name).is_none())
        && let Some(Keys { id, secret, token }) = keys()
    {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        if let Some(token) = token {
            builder = builder.with_token(token);
        }
    }
    match config().remove("region") {
        Some(region) if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none() => {
            builder.with_region(region)
        }
        _ => builder,
    }
}

fn keys() -> Option<Keys> {
    let of = |mut profile: Profile| {
        let (id, secret) = (profile.remove("aws_access_key_id")?, profile.remove("aws_secret_access_key")?);
        Some(Keys { id, secret, token: profile.remove("aws_session_token") })
    };
    let name = profile_name();
    let credentials = profile(&text("AWS_SHARED_CREDENTIALS_FILE", "credentials"), |section| section == name);
    of(credentials).or_else(|| of(config()))
}

/// The chosen profile in the file of settings, where each but the default one is called `profile NAME`.
fn config() -> Profile {
    let name = profile_name();
    let is_it = |section: &str| match section.strip_prefix("profile").map(str::trim_start) {
        Some(named) => named == name,
        None => section == DEFAULT && name == DEFAULT,
    };
    profile(&text("AWS_CONFIG_FILE", "config"), is_it)
}

/// The text of the file that the variable names, or of the usual one; empty if it cannot be read.
fn text(variable_name: &str, usual: &str) -> String {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".aws").join(usual));
    let path = variable(variable_name).map(PathBuf::from).or_else(home);
    path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The settings of the sections whose names are the profile's. No value that is used has blanks; what is indented belongs to the setting above it.
fn profile(text: &str, is_it: impl Fn(&str) -> bool) -> Profile {
    let mut is_inside = false;
    let mut found = Profile::new();
    for line in text.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let name = section.split(']').next().unwrap_or_default();
            is_inside = is_it(name.replace('"', "").trim());
        } else if is_inside
            && !line.starts_with([' ', '\t', '#', ';'])
            && let Some((name, value)) = line.split_once('=')
            && let Some(value) = value.split_whitespace().next()
        {
            found.insert(name.trim().to_ascii_lowercase(), value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_the_settings_of_its_section() {
        let text = "# by hand\naws_access_key_id = none\n[default]\naws_access_key_id=A\n\n[ team ]\nAWS_ACCESS_KEY_ID = B # old\n\
                    aws_secret_access_key = a+b/c==\n;region = no\ns3 =\n  region = no\nempty =\n[other]\nregion = no\n";
        let of = |name: &str| profile(text, |section| section == name);
        let team = of("team");
        assert_eq!(
            (team["aws_access_key_id"].as_str(), team["aws_secret_access_key"].as_str()),
            ("B", "a+b/c==")
        );
        assert_eq!((team.len(), of("default").len(), of("nobody").len()), (2, 1, 0));
    }
}
