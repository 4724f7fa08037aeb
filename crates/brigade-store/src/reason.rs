//! Why a store did not do what it was asked for, in one line.

use std::error::Error as StdError;

use object_store::client::HttpError;

/// A longer answer of a store is cut.
const MAX_CHARACTERS: usize = 600;

/// Where the client's messages name what a store answered.
const STATUS: &str = "Server returned non-2xx status code: ";

/// The code by which stores say that there is no such bucket.
const NO_BUCKET: &str = "NoSuchBucket";

/// What an error says: of a store's answer the status, its code and message; else all, with the innermost cause where the outer ones do not mention it.
///
/// Of the page in an answer nothing else is repeated: it names the key, and what was signed with it.
pub(crate) fn reason(error: &object_store::Error) -> String {
    if let object_store::Error::InvalidPath { source } = error {
        return format!(
            "the name of an object there has an empty part, or one that no path can have ({}); give a prefix below which there is none, or rename the object",
            one_line(source)
        );
    }
    let text = error.to_string();
    match text.split_once(STATUS) {
        Some((before, answer)) if !is_metadata(before) => refusal(answer),
        _ => {
            let mut line = one_line(error);
            if is_metadata(&text) {
                line.push_str(
                    "; there are no credentials in the environment, and no metadata server of a cloud",
                );
            }
            line
        }
    }
}

/// Whether the connection was cut, or no answer came: the client asks again by itself only as long as no part of the answer has come, and not
/// for all requests.
pub(crate) fn was_cut(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<HttpError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The status of a server that is busy, or fails at the moment.
const MAY_PASS: [&str; 6] = ["408", "429", "500", "502", "503", "504"];

/// What errors of connections say that no waiting helps with: the host's certificate is not trusted, or its name is wrong.
const STAYS: [&str; 2] = ["certificate", "Name or service not known"];

/// Whether the store did not answer, or was busy, so that it may do later what it was asked for.
pub(crate) fn may_pass(error: &object_store::Error) -> bool {
    let text = error.to_string();
    match text.split_once(STATUS) {
        _ if is_metadata(&text) => false,
        Some((_, answer)) => MAY_PASS.iter().any(|status| answer.starts_with(status)),
        None => was_cut(error) && !STAYS.iter().any(|said| one_line(error).contains(said)),
    }
}

/// Whether not the object is missing, but its bucket.
pub(crate) fn is_without_bucket(error: &object_store::Error) -> bool {
    error.to_string().contains(NO_BUCKET)
}

/// Whether credentials were asked for, on the machines of a cloud.
fn is_metadata(text: &str) -> bool {
    ["/latest/api/token", "/latest/meta-data", "/computeMetadata/"].iter().any(|path| text.contains(path))
}

/// `403 Forbidden: <?xml …>` in words.
fn refusal(answer: &str) -> String {
    let (status, body) = answer.split_once(':').unwrap_or((answer, ""));
    let field = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(value, _)| value.trim()).filter(|value| !value.is_empty())
    };
    let (code, message) = (field("Code"), field("Message"));
    let said = match (code, message) {
        (Some(NO_BUCKET), _) => format!(", {NO_BUCKET}: the bucket does not exist"),
        (Some(code), Some(message)) => format!(", {code}: {message}"),
        (Some(code), None) => format!(", {code}"),
        (None, _) if body.trim().is_empty() || body.contains('<') => String::new(),
        (None, _) => format!(": {}", body.trim()),
    };
    let hint = match status.trim().get(..3) {
        Some("401" | "403") => "; the credentials in the environment are wrong, or do not allow this",
        _ => "",
    };
    shortened(&format!("{}{said}{hint}", status.trim()))
}

/// What an error says, with its innermost cause where the outer ones do not mention it.
pub(crate) fn one_line(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let innermost = cause.to_string();
    if !text.contains(&innermost) {
        text = format!("{text}: {innermost}");
    }
    shortened(&without_limits(&text))
}

/// Without the client's own limits of retries, of which there is none in number.
fn without_limits(text: &str) -> String {
    let limits = text.split_once(", max_retries: ");
    match limits.and_then(|(before, rest)| Some((before, rest.split_once(" - ")?.1))) {
        Some((before, after)) => format!("{before}: {}", after.trim_start()),
        None => text.to_owned(),
    }
}

fn shortened(text: &str) -> String {
    // Stores answer with whole pages.
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_whose_name_is_no_path_is_named() {
        let source = object_store::path::Path::parse("a//b").unwrap_err();
        let said = reason(&object_store::Error::InvalidPath { source });
        assert!(said.contains("a//b") && said.contains("rename the object"), "{said}");
    }

    #[test]
    fn limits_that_nobody_set_are_not_repeated() {
        let said = "Error performing HEAD http://a/b in 3.5s, after 14 retries, max_retries: 18446744073709551615, retry_timeout: 3s  - HTTP error: refused";
        assert_eq!(
            without_limits(said),
            "Error performing HEAD http://a/b in 3.5s, after 14 retries: HTTP error: refused"
        );
        assert_eq!(without_limits("a - b"), "a - b");
    }

    #[test]
    fn of_a_refusal_the_code_and_the_message_are_repeated_alone() {
        let page = "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not \
                    match.</Message><AWSAccessKeyId>AKIDTESTING</AWSAccessKeyId><StringToSign>AWS4</StringToSign></Error>";
        assert_eq!(
            refusal(page),
            "403 Forbidden, SignatureDoesNotMatch: The signature does not match.; the credentials in the environment are wrong, or do not \
             allow this"
        );
        assert_eq!(refusal("503 Service Unavailable: <html>\n<body>busy</body>"), "503 Service Unavailable");
        assert_eq!(
            refusal("503 Service Unavailable: the test\nsays so"),
            "503 Service Unavailable: the test says so"
        );
        assert_eq!(
            refusal("404 Not Found: <Error><Code>NoSuchBucket</Code></Error>"),
            "404 Not Found, NoSuchBucket: the bucket does not exist"
        );
        assert_eq!(refusal("404 Not Found: "), "404 Not Found");
    }
}
