//! Texts that are secrets by their form, wherever they stand.

/// How well-known secrets begin, the least number of characters that follow, and what they are.
const FORMS: [(&str, usize, &str); 12] = [
    ("hf_", 20, "a token of the Hugging Face hub"),
    ("AKIA", 16, "an access key of AWS"),
    ("ASIA", 16, "an access key of AWS"),
    ("AIza", 30, "an API key of Google"),
    ("ghp_", 30, "a token of GitHub"),
    ("github_pat_", 30, "a token of GitHub"),
    ("glpat-", 20, "a token of GitLab"),
    ("sk-proj-", 20, "an API key of OpenAI"),
    ("sk-", 32, "an API key"),
    ("xoxb-", 20, "a token of Slack"),
    ("ya29.", 20, "an access token of Google"),
    ("-----BEGIN", 0, "a private key"),
];

/// What is in URLs and headers that give access by themselves, in lower case, and what they are.
const PASSES: [(&str, &str); 7] = [
    ("x-amz-signature=", "a signed URL"),
    ("x-goog-signature=", "a signed URL"),
    ("?sig=", "a signed URL"),
    ("&sig=", "a signed URL"),
    ("authorization:", "a header that gives access"),
    ("bearer ", "a header that gives access"),
    ("hooks.slack.com/services/", "an address that anybody who knows it can post to"),
];

/// What a text holds that gives access by itself: a well-known kind of token, a signed URL, a password in one, or a header. `None` if it looks like nothing of
/// that kind.
///
/// ```
/// use brigade_launch::looks_like_secret;
/// assert_eq!(looks_like_secret("https://me:hidden@host/"), Some("a password in a URL"));
/// assert_eq!(looks_like_secret("https://host/runs"), None);
/// ```
pub fn looks_like_secret(text: &str) -> Option<&'static str> {
    let of_secrets = |letter: &char| letter.is_ascii_alphanumeric() || "_-".contains(*letter);
    let begins = |word: &str| {
        let long = |rest: &str, least| rest.chars().take_while(of_secrets).count() >= least;
        let known = FORMS
            .iter()
            .find(|(start, least, _)| word.strip_prefix(start).is_some_and(|rest| long(rest, *least)));
        // Two parts of a JSON Web Token are objects.
        let is_jwt = word.starts_with("eyJ") && word.contains(".eyJ");
        known.map(|(_, _, what)| *what).or_else(|| is_jwt.then_some("a JSON Web Token"))
    };
    let mut words = text.split(['=', ',', '"', '\'', ' ']);
    if let Some(what) = words.find_map(begins) {
        return Some(what);
    }
    let lower = text.to_ascii_lowercase();
    let gives = |pass: &str| lower.split_once(pass).is_some_and(|(_, rest)| !rest.trim().is_empty());
    if let Some((_, what)) = PASSES.iter().find(|(pass, _)| gives(pass)) {
        return Some(what);
    }
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split('/').next()?;
    let user = authority.rsplit_once('@')?.0;
    user.contains(':').then_some("a password in a URL")
}
