//! Names of secrets, of whatever kind.

/// How they end, in whole words.
const NAMES: [&str; 15] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASS",
    "PWD",
    "BEARER",
    "COOKIE",
    "ACCESS_KEY",
    "ACCOUNTKEY",
    "API_KEY",
    "APIKEY",
    "SECRET_KEY",
    "CREDENTIALS",
];

/// Whether the last words of a name, of a variable, a flag, a setting or a part of a URL's query, say that its value is a secret.
///
/// ```
/// use brigade_launch::is_secret_name;
/// assert!(is_secret_name("DB_PASSWORD") && is_secret_name("--api-key") && is_secret_name("token"));
/// assert!(!is_secret_name("max_tokens") && !is_secret_name("COMPASS"));
/// ```
pub fn is_secret_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_uppercase().replace(['-', '.'], "_");
    NAMES.iter().any(|end| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_')))
}
