//! Names and labels that Kubernetes allows.

use crate::error::{Error, Result};

/// The greatest length of a name that becomes part of a host's name.
pub const LABEL: usize = 63;

/// The units of amounts of memory.
pub const BYTES: [&str; 11] = ["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"];

/// Checks a job's name; `most` is its greatest length.
pub fn job_name(name: &str, most: usize) -> Result<()> {
    let allowed = format!(
        "Kubernetes requires a lowercase letter first, then lowercase letters, digits and -, no - at the end, and at most {most} characters (its \
        pods add to the name)"
    );
    let is_name = is_part(name) && name.starts_with(|first: char| first.is_ascii_lowercase());
    require(is_name && name.len() <= most, "--name", name, &allowed)
}

/// Checks a name that is part of host names.
pub fn dns_label(option: &str, name: &str) -> Result<()> {
    let allowed =
        "Kubernetes requires 1 to 63 lowercase letters, digits and -, with a letter or digit at both ends";
    require(is_part(name) && name.len() <= LABEL, option, name, allowed)
}

/// Checks a name that looks like a host's. `given` is what the option says.
pub fn dns_subdomain(option: &str, given: &str, name: &str) -> Result<()> {
    let allowed = "Kubernetes requires 1 to 253 lowercase letters, digits, - and . in its name, with a letter or digit at both ends and beside each .";
    require(is_subdomain(name), option, given, allowed)
}

/// Checks the key of a label, with an optional prefix. `given` is what the option says.
pub fn label_key(option: &str, given: &str, key: &str) -> Result<()> {
    qualified_name(option, given, key, "a label's key")
}

/// Checks a name with an optional prefix; `what` says what it is. `given` is what the option says.
pub fn qualified_name(option: &str, given: &str, name: &str, what: &str) -> Result<()> {
    let (prefix, name) = name.split_once('/').map_or((None, name), |(prefix, name)| (Some(prefix), name));
    let allowed = format!(
        "{what} has 1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends, and may begin with a domain and /, such as \
        cloud.google.com/gce-topology-block"
    );
    require(is_label(name) && prefix.is_none_or(is_subdomain), option, given, &allowed)
}

/// Checks the value of a label. `given` is what the option says.
pub fn label_value(option: &str, given: &str, value: &str) -> Result<()> {
    let allowed =
        "a label's value has at most 63 letters, digits, -, _ and ., with a letter or digit at both ends";
    require(value.is_empty() || is_label(value), option, given, allowed)
}

/// Checks the key of a value in a secret. `given` is what the option says.
pub fn secret_key(option: &str, given: &str, key: &str) -> Result<()> {
    let of_keys = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let is_key = (1..=253).contains(&key.len()) && key.chars().all(of_keys) && !key.starts_with("..");
    let allowed = "Kubernetes requires 1 to 253 letters, digits, -, _ and . in a secret's key";
    require(is_key && key != ".", option, given, allowed)
}

/// Checks an amount that is more than nothing, in one of these units; `what` says what it is. `given` is what the option says.
pub fn quantity(option: &str, given: &str, amount: &str, units: &[&str], what: &str) -> Result<()> {
    let end = amount.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(amount.len());
    let (number, unit) = amount.split_at(end);
    let is_amount = number.starts_with(|first: char| first.is_ascii_digit())
        && number.parse::<f64>().is_ok_and(|number| number > 0.0 && number.is_finite());
    require(is_amount && units.contains(&unit), option, given, &format!("it must be {what}"))
}

fn require(right: bool, option: &str, given: &str, allowed: &str) -> Result<()> {
    if right { Ok(()) } else { Err(Error::value(option, given, allowed)) }
}

/// Whether all is lowercase letters and digits, or - between them.
fn is_part(text: &str) -> bool {
    let ends = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    text.starts_with(ends) && text.ends_with(ends) && text.chars().all(|letter| ends(letter) || letter == '-')
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_label(text: &str) -> bool {
    let ends = |letter: char| letter.is_ascii_alphanumeric();
    let inner = |letter: char| ends(letter) || "-_.".contains(letter);
    text.len() <= LABEL && text.starts_with(ends) && text.ends_with(ends) && text.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = "a".repeat(64);
        for name in ["", "A", "a_b", "a-", "-a", "ä", "a.b", &long] {
            let message = job_name(name, 20).unwrap_err().to_string();
            assert!(message.starts_with("--name ") && message.contains("Kubernetes requires"), "{message}");
            assert!(dns_label("--namespace", name).is_err(), "{name}");
        }
        assert!(job_name("llama-7b", 20).is_ok() && job_name("7b", 20).is_err());
        assert!(job_name(&long, 20).is_err() && dns_label("--namespace", "7b").is_ok());
        for name in ["my.claim", "7secret", "a", &long] {
            dns_subdomain("--volume", name, name).unwrap();
        }
        for name in ["", ".a", "a.", "a..b", "a.-b", "A", "a_b", &"a".repeat(254)] {
            assert!(dns_subdomain("--volume", name, name).is_err(), "{name}");
        }
    }

    #[test]
    fn keys_and_quantities() {
        for key in ["token", "a.b_C-7", ".dockerconfigjson"] {
            secret_key("--env-secret", key, key).unwrap();
        }
        for key in ["", ".", "..a", "a/b", "a b", &"a".repeat(254)] {
            assert!(secret_key("--env-secret", key, key).is_err(), "{key}");
        }
        for cpus in ["8", "7.5", "7500m"] {
            quantity("--cpus", cpus, cpus, &["", "m"], "a number").unwrap();
        }
        for cpus in ["", "m", "0", "-1", ".5", "1e3", "inf", "8Gi", "1.2.3", "8 m"] {
            let message = quantity("--cpus", cpus, cpus, &["", "m"], "a number").unwrap_err().to_string();
            assert!(message.ends_with("is not possible: it must be a number"), "{message}");
        }
    }

    #[test]
    fn labels() {
        for key in ["pool", "Pool_1.a", "cloud.google.com/gce-topology-block"] {
            label_key("--topology", key, key).unwrap();
        }
        for key in ["", "/a", "a/", "a/b/c", "A.b/c", "-a", "a b", &"a".repeat(64)] {
            assert!(label_key("--topology", key, key).is_err(), "{key}");
        }
        for value in ["", "A", "a.b_c-7"] {
            label_value("--queue", value, value).unwrap();
        }
        for value in ["-a", "a-", "a/b", "a b", &"a".repeat(64)] {
            assert!(label_value("--queue", value, value).is_err(), "{value}");
        }
    }
}
