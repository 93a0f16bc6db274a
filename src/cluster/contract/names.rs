//! Names of objects that are made for others. Pure, but for what is drawn by lot.

use rand::seq::IndexedRandom;

use crate::api::is_dns_part;

/// No vowels, and nothing that looks like something else: no words come about by chance.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters that are drawn by lot.
const DRAWN: usize = 5;
/// Longest name of a machine, which becomes a label and a host name.
const LONGEST: usize = 63;

/// Five letters by lot.
fn drawn() -> String {
    let mut lot = rand::rng();
    (0..DRAWN).filter_map(|_| LETTERS.choose(&mut lot)).map(|letter| char::from(*letter)).collect()
}

/// A name that begins with this one, and is of nobody else as far as chance goes: `workers-x7k2p`.
pub fn fresh(front: &str) -> String {
    ended(&format!("{front}-"), &drawn())
}

fn ended(front: &str, end: &str) -> String {
    let mut keep = front.len().min(LONGEST - end.len());
    while !front.is_char_boundary(keep) {
        keep -= 1;
    }
    format!("{}{end}", front.get(..keep).unwrap_or_default())
}

/// A name as a template says, in which `{{ .random }}` and the values stand: `{{ .machineSet.name }}-{{ .random }}`. A name that
/// is too long ends with what is drawn by lot.
///
/// # Errors
///
/// When the template names something that is not there, or the name could not be an object's.
pub fn named_by(template: &str, values: &[(&str, &str)]) -> Result<String, String> {
    filled(template, values, &drawn())
}

fn filled(template: &str, values: &[(&str, &str)], random: &str) -> Result<String, String> {
    if !template.contains(".random") {
        return Err("the template of names has no {{ .random }}: there would be one name for all".to_owned());
    }
    let (mut name, mut rest) = (String::new(), template);
    while let Some((front, behind)) = rest.split_once("{{") {
        let (inside, behind) = behind.split_once("}}").ok_or("the template of names has {{ without }}")?;
        let inside = inside.trim();
        let value = match inside {
            ".random" => Some(random),
            other => values.iter().find(|(name, _)| *name == other).map(|(_, value)| *value),
        };
        let value = value.ok_or_else(|| {
            let known: Vec<&str> = values.iter().map(|(name, _)| *name).chain([".random"]).collect();
            format!("the template of names has {inside:?}, and there is only {}", known.join(", "))
        })?;
        name.push_str(front);
        name.push_str(value);
        rest = behind;
    }
    name.push_str(rest);
    if name.len() > LONGEST {
        name = ended(&name, random);
    }
    if is_dns_part(&name) { Ok(name) } else { Err(format!("the template of names makes {name:?}, which is no name")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_their_own() {
        let names: std::collections::BTreeSet<String> = (0..50).map(|_| fresh("workers")).collect();
        assert!(names.len() > 45, "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("workers-") && name.len() == "workers-".len() + DRAWN));
        assert_eq!(fresh(&"x".repeat(100)).len(), LONGEST);
    }

    #[test]
    fn templates_of_names_are_filled_in() {
        let values = [(".machineSet.name", "web"), (".cluster.name", "c")];
        let long = "x".repeat(70) + "{{ .random }}";
        for (template, wanted) in [
            ("{{ .machineSet.name }}-{{ .random }}", Ok("web-abcde".to_owned())),
            ("{{.cluster.name}}-node-{{.random}}", Ok("c-node-abcde".to_owned())),
            (&long, Ok("x".repeat(58) + "abcde")),
            ("{{ .machineSet.name }}", Err("no {{ .random }}")),
            ("{{ .other }}-{{ .random }}", Err("only .machineSet.name")),
            ("{{ .random", Err("without }}")),
            ("A-{{ .random }}", Err("no name")),
            ("{{ .random }}-", Err("no name")),
        ] {
            match (filled(template, &values, "abcde"), wanted) {
                (Ok(name), Ok(wanted)) => assert_eq!(name, wanted),
                (Err(reason), Err(wanted)) => assert!(reason.contains(wanted), "{reason}"),
                (was, _) => panic!("{template}: {was:?}"),
            }
        }
    }
}
