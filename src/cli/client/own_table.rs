//! Tables of the command's own, where a server's table says less than operators look for.
//!
//! The columns of a kind are part of its published definition, and cannot count a list or tell a size; these can.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::types::ServedType;
use super::{columns, hardware, hosts};

/// Name, what stands there, whether it is only for `-o wide`.
pub(super) type OwnColumn = (&'static str, fn(&Value, Timestamp) -> String, bool);

/// The columns for what somebody asks for by this word, if it has some of its own.
pub(super) fn columns(word: &str, of: &ServedType) -> Option<&'static [OwnColumn]> {
    match (of.group.as_str(), of.plural.as_str()) {
        ("metal3.io", "baremetalhosts") if hosts::WORDS.contains(&word.to_lowercase().as_str()) => {
            Some(&hosts::COLUMNS)
        }
        ("metal3.io", "hardwaredata") => Some(&hardware::COLUMNS),
        ("metal3.io", "dataimages") => Some(&columns::DATA_IMAGES),
        ("slipway.dev", "images") => Some(&columns::IMAGES),
        ("ipam.metal3.io", "ippools") => Some(&columns::POOLS),
        ("ipam.metal3.io", "ipclaims") => Some(&columns::CLAIMS),
        ("ipam.metal3.io", "ipaddresses") => Some(&columns::ADDRESSES),
        _ => None,
    }
}

/// The server's table with these columns. One whose rows lack the objects stays as it is.
pub(super) fn table(mut table: Value, columns: &[OwnColumn], now: Timestamp) -> Value {
    let rows = table["rows"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.iter().any(|row| row["object"].get("spec").is_none()) {
        return table;
    }
    let cells: Vec<Value> =
        rows.iter().map(|row| columns.iter().map(|(_, cell, _)| cell(&row["object"], now)).collect()).collect();
    if let Some(rows) = table["rows"].as_array_mut() {
        for (row, cells) in rows.iter_mut().zip(cells) {
            row["cells"] = cells;
        }
    }
    let column = |&(name, _, wide): &OwnColumn| {
        let format = if name == "Name" { "name" } else { "" };
        json!({ "name": name, "type": "string", "format": format, "priority": i64::from(wide) })
    };
    table["columnDefinitions"] = columns.iter().map(column).collect();
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::client::types::tests::types;

    #[test]
    fn hosts_have_two_tables_and_hardware_has_one() {
        let types = types();
        for (word, wanted) in [
            ("hosts", Some("State")),
            ("Host", Some("State")),
            ("bmh", None),
            ("baremetalhosts", None),
            ("hardwaredata", Some("Model")),
            ("secrets", None),
        ] {
            let found = columns(word, types.find(word).unwrap()[0]);
            assert_eq!(found.map(|columns| columns[1].0), wanted, "{word}");
        }
    }
}
