//! Error bodies: `error.@Message.ExtendedInfo` (DSP0266, section "Error responses").

use serde_json::Value;

/// Longest text taken from a BMC into an error.
const MAX_TEXT: usize = 400;

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
            ids.push(clean(id.rsplit('.').next().unwrap_or(id), 100));
        }
        for key in ["Message", "Resolution"] {
            let text = clean(info[key].as_str().unwrap_or_default(), MAX_TEXT);
            if !matches!(text.as_str(), "" | "None" | "None.") && !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    if texts.is_empty() {
        texts.extend(error["message"].as_str().map(|t| clean(t, MAX_TEXT)));
    }
    if ids.is_empty() {
        ids.extend(error["code"].as_str().map(|c| clean(c.rsplit('.').next().unwrap_or(c), 100)));
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

/// Text from the wire, fit for a log line, without spaces around it.
pub fn clean(text: &str, max: usize) -> String {
    crate::log::clean(text, max).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

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
