//! Names that Google Cloud allows.

use crate::error::{Error, Result};

/// Checks the name of a region.
pub fn region(given: &str) -> Result<()> {
    let is_region = |name: &str| {
        let letters = name.trim_end_matches(|last: char| last.is_ascii_digit());
        let is_word = |word: &str| !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase());
        letters.len() < name.len() && letters.contains('-') && letters.split('-').all(is_word)
    };
    if is_region(given) {
        return Ok(());
    }
    let zone = given.rsplit_once('-').filter(|(name, zone)| is_region(name) && zone.len() == 1);
    Err(Error::value(
        "--region",
        given,
        match zone {
            Some((name, _)) => format!("it is a zone; its region is {name}"),
            None => "it must be a region of Google Cloud, such as europe-west4 or us-central1".into(),
        },
    ))
}

/// Checks the id or the number of a project.
pub fn project(given: &str) -> Result<()> {
    let (domain, id) = given.rsplit_once(':').map_or((None, given), |(domain, id)| (Some(domain), id));
    let of_ids = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_id = (6..=30).contains(&id.len())
        && id.chars().all(of_ids)
        && id.starts_with(|first: char| first.is_ascii_lowercase())
        && !id.ends_with('-');
    let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let is_domain =
        |domain: &str| !domain.is_empty() && domain.chars().all(|letter| of_ids(letter) || letter == '.');
    if (is_id && domain.is_none_or(is_domain)) || (is_number && domain.is_none()) {
        return Ok(());
    }
    let allowed = "it must be the id of a project, not its name: 6 to 30 lowercase letters, digits and -, as shown by gcloud projects list; or its number";
    Err(Error::value("--project", given, allowed))
}

/// Checks the address of a service account.
pub fn service_account(given: &str) -> Result<()> {
    let of_names = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let is_name = |name: &str| !name.is_empty() && name.chars().all(of_names);
    let parts = given.split_once('@');
    if parts.is_some_and(|(name, domain)| is_name(name) && is_name(domain) && domain.contains('.')) {
        return Ok(());
    }
    let allowed = "with Vertex AI it must be the address of a service account, such as NAME@PROJECT.iam.gserviceaccount.com";
    Err(Error::value("--service-account", given, allowed))
}

/// Whether a machine type looks like one: a series, a class and a size.
pub fn is_machine_type(given: &str) -> bool {
    let of_words = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let words: Vec<&str> = given.split('-').collect();
    words.len() >= 3
        && words.iter().all(|word| !word.is_empty() && word.chars().all(of_words))
        && words[0].starts_with(|first: char| first.is_ascii_lowercase())
        && words[2].starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for right in ["europe-west4", "us-central1", "northamerica-northeast2", "europe-west12"] {
            region(right).unwrap();
        }
        let message = |result: Result<()>| result.unwrap_err().to_string();
        assert_eq!(
            message(region("europe-west4-a")),
            "--region europe-west4-a is not possible: it is a zone; its region is europe-west4"
        );
        for wrong in ["", "r", "europe", "europe-west", "Europe-West4", "europe-west4-ab", "4"] {
            assert!(message(region(wrong)).contains("as europe-west4"), "{wrong}");
        }
        for right in ["my-project", "project-123456", "123456789", "example.com:my-project"] {
            project(right).unwrap();
        }
        for wrong in ["", "My Project", "short", "my-project-", "1my-project", ":my-project", "a.b:1"] {
            assert!(message(project(wrong)).starts_with("--project "), "{wrong}");
        }
        for right in ["a@my-project.iam.gserviceaccount.com", "1-compute@developer.gserviceaccount.com"] {
            service_account(right).unwrap();
        }
        for wrong in ["", "not an email", "a", "a@b", "@b.c", "a@b@c.d"] {
            assert!(message(service_account(wrong)).starts_with("--service-account "), "{wrong}");
        }
        for right in ["n1-standard-16", "a2-highgpu-1g", "a4x-highgpu-4g", "c3-standard-22-lssd"] {
            assert!(is_machine_type(right), "{right}");
        }
        for wrong in ["", "zzz", "n1-standard", "n1-16", "N1-standard-16", "n1--16", "n1-standard-x"] {
            assert!(!is_machine_type(wrong), "{wrong}");
        }
    }
}
