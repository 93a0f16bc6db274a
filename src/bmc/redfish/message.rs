//! Error bodies: `error.@Message.ExtendedInfo` (DSP0266, section "Error responses").

use serde_json::{Value, json};

/// Longest text taken from a BMC into an error.
const MAX_TEXT: usize = 400;

/// Longest word taken from a BMC into an error, in bytes. A ticket in the URL of a medium is longer, and gives whoever reads it
/// what the medium has; a BMC repeats the URL, the name of its file, or its path, encoded in some way.
const MAX_WORD: usize = 64;

/// Longest name of a message, in bytes, and how many are kept of an answer.
const MAX_NAME: usize = 64;
const MAX_NAMES: usize = 4;

/// What a BMC says about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaint {
    /// Last parts of the message IDs, such as `PropertyNotWritable`.
    pub ids: Vec<String>,
    /// Messages for people, cleaned and cut.
    pub text: String,
}

/// Reads an error body. Bodies of another form give an empty complaint.
pub fn complaint(body: &Value) -> Complaint {
    let error = &body["error"];
    let listed = [&error["@Message.ExtendedInfo"], &body["@Message.ExtendedInfo"]];
    let mut ids = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    for info in listed.into_iter().flat_map(each).take(16) {
        if let Some(id) = info["MessageId"].as_str() {
            ids.push(readable(id.rsplit('.').next().unwrap_or(id), 100));
        }
        for key in ["Message", "Resolution"] {
            let text = readable(info[key].as_str().unwrap_or_default(), MAX_TEXT);
            if !matches!(text.as_str(), "" | "None" | "None.") && !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    if texts.is_empty() {
        texts.extend(error["message"].as_str().map(|t| readable(t, MAX_TEXT)));
    }
    if ids.is_empty() {
        ids.extend(error["code"].as_str().map(|c| readable(c.rsplit('.').next().unwrap_or(c), 100)));
    }
    if texts.is_empty() {
        texts.extend(ids.first().cloned());
    }
    Complaint { ids, text: clean(&texts.join(" "), MAX_TEXT) }
}

/// The list, or the single object that some services send instead.
fn each(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(_) => vec![value],
        _ => Vec::new(),
    }
}

/// An error body with nothing but the names of its messages, as registries have them: letters, the first of them large
/// (DSP0268; `PropertyValueNotInList`).
pub fn names_only(body: &Value) -> Value {
    let is_name = |id: &&String| {
        id.len() <= MAX_NAME
            && id.starts_with(|c: char| c.is_ascii_uppercase())
            && id.bytes().all(|b| b.is_ascii_alphabetic())
    };
    let mut names = complaint(body).ids;
    names.retain(|id| is_name(&id));
    names.truncate(MAX_NAMES);
    let infos: Vec<Value> = names.into_iter().map(|name| json!({ "MessageId": name })).collect();
    json!({ "error": { "@Message.ExtendedInfo": infos } })
}

/// Whether a body has this secret in it, as it is, as JSON has it, or as JSON within a text has it.
pub fn repeats(body: &Value, secret: &str) -> bool {
    let escaped = |text: &str| {
        let quoted = Value::from(text).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let (text, once) = (body.to_string(), escaped(secret));
    !secret.is_empty() && [&once, &escaped(&once)].into_iter().any(|secret| text.contains(secret))
}

/// The same as [`clean`], for text that anybody may read: words as long as a ticket are left out.
fn readable(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    let mut rest = text;
    while !rest.is_empty() && shown.len() <= max {
        let of_a_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let word = rest.find(|c| !of_a_word(c)).unwrap_or(rest.len());
        shown.push_str(if word > MAX_WORD { "…" } else { &rest[..word] });
        let after = rest[word..].find(of_a_word).map_or(rest.len(), |next| word + next);
        shown.push_str(&rest[word..after]);
        rest = &rest[after..];
    }
    clean(&shown, max)
}

/// Text from the wire, fit for a log line, without spaces around it.
pub fn clean(text: &str, max: usize) -> String {
    crate::log::clean(text, max).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ticket_is_in_no_error_however_a_bmc_repeats_it() {
        let ticket = "A-b_9".repeat(28);
        for said in [
            format!("cannot fetch http://172.30.0.1/boot/iso/{ticket}.iso"),
            format!("file {ticket}.iso not found"),
            format!("path http%3A%2F%2F172.30.0.1%2Fboot%2Fiso%2F{ticket}%2Eiso"),
            format!("http://172.30.0.1:80/boot/iso/{ticket}.iso, {ticket}"),
            ticket.clone(),
        ] {
            for body in [
                json!({"error": {"message": said}}),
                json!({"error": {"code": said}}),
                json!({"error": {"@Message.ExtendedInfo": [{"MessageId": said, "Message": said, "Resolution": said}]}}),
            ] {
                let found = complaint(&body);
                let all = [found.ids.concat(), found.text].concat();
                assert!(!all.contains(&ticket[..5]), "{all}");
            }
        }
        assert_eq!(readable("Größe: 5 GB, id 0123-4567", 400), "Größe: 5 GB, id 0123-4567");
        let digest = "a".repeat(64);
        assert_eq!(readable(&digest, 400), digest);
    }

    #[test]
    fn nothing_but_names_is_left_of_an_answer_to_what_is_secret() {
        let ticket = "A-b_9".repeat(28);
        let pieces: Vec<_> =
            ticket.as_bytes().chunks(20).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        let infos: Vec<_> =
            pieces.iter().map(|piece| json!({"MessageId": piece, "Message": piece, "Resolution": piece})).collect();
        for body in [
            json!({"error": {"code": "Base.1.8.GeneralError", "message": pieces.join(" ")}}),
            json!({"error": {"message": pieces.join("\u{200b}"), "@Message.ExtendedInfo": infos}}),
            json!({"error": {"code": pieces[0]}, "@Message.ExtendedInfo": {"MessageId": "iLO.2.26.GeneralError", "Message": pieces.join("...")}}),
        ] {
            let left = names_only(&body).to_string();
            assert!(!left.contains(&ticket[..5]), "{left}");
            let found = complaint(&names_only(&body));
            assert!(matches!(found.text.as_str(), "GeneralError" | ""), "{found:?}");
        }
    }

    #[test]
    fn a_password_is_found_however_json_has_it() {
        let password = r#"Hunter2"q&x\"#;
        let within = json!({"Password": password}).to_string();
        for (said, repeats_it) in [
            (format!("the value {password} for the property Password is not right"), true),
            (format!("{within} is not right"), true),
            ("the property Password is not right".into(), false),
        ] {
            assert_eq!(repeats(&json!({"error": {"message": said}}), password), repeats_it, "{said}");
        }
        assert!(!repeats(&json!({"error": {}}), ""));
    }

    #[test]
    fn the_reason_is_found_in_every_form_that_services_use() {
        let listed = json!({"error": {"code": "Base.1.8.GeneralError", "message": "See ExtendedInfo", "@Message.ExtendedInfo": [
            {"MessageId": "Base.1.8.PropertyNotWritable", "Message": "The property is read only.", "Resolution": "Remove it."}]}});
        let found = complaint(&listed);
        assert_eq!(
            (found.ids, found.text),
            (vec!["PropertyNotWritable".into()], "The property is read only. Remove it.".into())
        );

        let single =
            json!({"error": {"@Message.ExtendedInfo": {"MessageId": "iLO.2.26.UnableToModifyDuringSystemPOST"}}});
        let found = complaint(&single);
        assert_eq!(found.ids, ["UnableToModifyDuringSystemPOST"]);
        assert_eq!(found.text, "UnableToModifyDuringSystemPOST");

        let plain = json!({"error": {"code": "Base.1.0.GeneralError", "message": "Domain not\nfound"}});
        assert_eq!(complaint(&plain).text, "Domain not found");
        assert_eq!(complaint(&json!([1, 2])), Complaint::default());
    }

    proptest! {
        #[test]
        fn texts_stay_short(text in "\\PC{0,2000}") {
            let found = complaint(&json!({"error": {"message": text}}));
            prop_assert!(found.text.chars().count() <= MAX_TEXT + 1);
        }
    }
}
