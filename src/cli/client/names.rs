//! Selecting objects on the command line: `TYPE`, `TYPE NAME…`, `TYPE1,TYPE2`, `TYPE/NAME…`.

/// A type as it was written, and the names asked for; no names: all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameSelection {
    pub word: String,
    pub names: Vec<String>,
}

/// Reads the arguments; the order stays.
pub(super) fn parse(arguments: &[String]) -> Result<Vec<NameSelection>, String> {
    let Some(first) = arguments.first() else { return Err("which type? As: hosts, or hosts/web-1".into()) };
    let slashes = arguments.iter().filter(|argument| argument.contains('/')).count();
    if slashes == 0 {
        let words: Vec<&str> = first.split(',').filter(|word| !word.is_empty()).collect();
        let names = &arguments[1..];
        if words.is_empty() {
            return Err(format!("{first:?} is no type"));
        }
        let selection = |word: &&str| NameSelection { word: (*word).to_owned(), names: names.to_vec() };
        return Ok(words.iter().map(selection).collect());
    }
    if slashes < arguments.len() {
        return Err("with TYPE/NAME, every argument must be TYPE/NAME".into());
    }
    let mut selections: Vec<NameSelection> = Vec::new();
    for argument in arguments {
        let (word, name) = argument.split_once('/').unwrap_or((argument, ""));
        if word.is_empty() || name.is_empty() || name.contains('/') || word.contains(',') {
            return Err(format!("{argument:?} is not TYPE/NAME"));
        }
        match selections.last_mut().filter(|last| last.word == word) {
            Some(last) => last.names.push(name.to_owned()),
            None => selections.push(NameSelection { word: word.to_owned(), names: vec![name.to_owned()] }),
        }
    }
    Ok(selections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_kubectl_is_read() {
        let parse = |text: &str| super::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let one = |word: &str, names: &[&str]| NameSelection {
            word: word.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        for (text, wanted) in [
            ("hosts", vec![one("hosts", &[])]),
            ("hosts a b", vec![one("hosts", &["a", "b"])]),
            ("hosts,secrets", vec![one("hosts", &[]), one("secrets", &[])]),
            ("hosts,secrets a", vec![one("hosts", &["a"]), one("secrets", &["a"])]),
            ("host/a host/b secret/c", vec![one("host", &["a", "b"]), one("secret", &["c"])]),
        ] {
            assert_eq!(parse(text).unwrap(), wanted, "{text}");
        }
        for text in ["", "hosts/a b", "b hosts/a", "/a", "host/", "host/a/b", "a,b/c", ","] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
