//! What the server answers, and parts of it.

/// What a server says.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    /// What it says of the content's length, if that is not here: the answer to `HEAD`.
    pub(super) length: Option<u64>,
}

impl Answer {
    /// A header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// A status with a text.
    pub(crate) fn text(status: u16, text: &str) -> Self {
        Self { status, headers: Vec::new(), content: text.as_bytes().to_vec(), length: None }
    }
}

/// Text without percent-encoding.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A Unix time as text.
pub(super) fn date(time: i64, format: &str) -> String {
    chrono::DateTime::from_timestamp(time, 0).unwrap_or_default().format(format).to_string()
}
