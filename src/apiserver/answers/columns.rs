//! Columns of server-side tables (meta/v1 Table): headings, and the cells of one object.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::jsonpath::Path;
use crate::store::OBJECT_LIMIT;

/// One column.
#[derive(Clone, Debug)]
pub struct PrinterColumn {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: String,
    /// Format of the type, or `name` for the column that names the object.
    pub format: String,
    /// For people.
    pub description: String,
    /// 0: always shown; above: with `-o wide`.
    pub priority: i32,
    /// Where the cell comes from.
    pub source: CellSource,
}

/// Where a cell comes from.
#[derive(Clone, Debug)]
pub enum CellSource {
    /// The value at a path.
    Path(Path),
    /// `metadata.name`
    Name,
    /// Time since `metadata.creationTimestamp`.
    Age,
    /// Reckoned from the object.
    Cell(fn(&Value, Timestamp) -> Value),
}

impl PrinterColumn {
    /// A reckoned column.
    pub fn cell(name: &str, kind: &str, priority: i32, cell: fn(&Value, Timestamp) -> Value) -> Self {
        Self::new(name, kind, priority, CellSource::Cell(cell))
    }

    fn new(name: &str, kind: &str, priority: i32, source: CellSource) -> Self {
        let (name, kind) = (name.into(), kind.into());
        Self { name, kind, format: String::new(), description: String::new(), priority, source }
    }

    /// The same column with a description.
    #[must_use]
    pub fn described(mut self, description: &str) -> Self {
        self.description = description.into();
        self
    }

    /// The object's name.
    pub fn name() -> Self {
        let mut column = Self::new("Name", "string", 0, CellSource::Name).described(NAME);
        column.format = "name".into();
        column
    }

    /// Time since creation.
    pub fn age() -> Self {
        Self::new("Age", "string", 0, CellSource::Age).described(AGE)
    }

    fn cell_of(&self, object: &Value, now: Timestamp) -> Value {
        let path = match &self.source {
            CellSource::Name => return object["metadata"]["name"].clone(),
            CellSource::Age => return age(&object["metadata"]["creationTimestamp"], now),
            CellSource::Cell(cell) => return cell(object, now),
            CellSource::Path(path) => path,
        };
        let Some(value) = path.first(object).filter(|value| !value.is_null()) else { return Value::Null };
        match (self.kind.as_str(), value) {
            ("date", _) => age(value, now),
            ("integer" | "number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("string", Value::String(_)) => value.clone(),
            ("string", other) => other.to_string().into(),
            _ => Value::Null,
        }
    }
}

/// What upstream says of the two columns that every kind has (`metav1.ObjectMeta`).
const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources \
    may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for \
    creation idempotence and configuration definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not \
    guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is \
    represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
    https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Headings; sent once, and in a watch with the first event.
pub fn definitions(columns: &[PrinterColumn]) -> Value {
    columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect()
}

/// Bytes of text in the cells of one row. A kind may have thousands of columns that show the same large member.
const CELLS_MAX: usize = 2 * OBJECT_LIMIT;

/// The cells of one row. What would be too much together is left empty.
pub fn cells(columns: &[PrinterColumn], object: &Value, now: Timestamp) -> Value {
    let mut room = CELLS_MAX;
    let mut bounded = |cell: Value| match room.checked_sub(cell.as_str().map_or(0, str::len)) {
        Some(rest) => {
            room = rest;
            cell
        }
        None => Value::Null,
    };
    columns.iter().map(|column| bounded(column.cell_of(object, now))).collect()
}

/// Time since a timestamp, as kubectl writes ages.
pub fn age(stamp: &Value, now: Timestamp) -> Value {
    match stamp.as_str().map(str::parse::<Timestamp>) {
        None => "<unknown>".into(),
        Some(Err(_)) => "<invalid>".into(),
        Some(Ok(then)) => duration(now.as_second() - then.as_second()).into(),
    }
}

/// Seconds in the two most telling units (apimachinery's `HumanDuration`).
pub fn duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".into();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |first: i64, unit: &str, second: i64, small: &str| {
        if second == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{second}{small}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, "d", hours % 24, "h"),
        () if hours < 24 * 365 * 2 => format!("{days}d"),
        () if hours < 24 * 365 * 8 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (seconds, wanted) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_460, "3h11m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_072_000 + 86_400 * 3, "2y3d"),
            (86_400 * 365 * 9, "9y"),
        ] {
            assert_eq!(duration(seconds), wanted, "{seconds}");
        }
    }

    #[test]
    fn a_row_does_not_repeat_a_large_member_for_each_column() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"large": "x".repeat(OBJECT_LIMIT - 100)}});
        let source = || CellSource::Path(Path::parse_plain(".spec.large").unwrap());
        let mut columns: Vec<PrinterColumn> =
            (0..5).map(|_| PrinterColumn { source: source(), ..PrinterColumn::name() }).collect();
        columns.push(PrinterColumn::name());
        let cells = cells(&columns, &object, Timestamp::UNIX_EPOCH);
        let lengths: Vec<usize> = (0..6).map(|index| cells[index].as_str().map_or(0, str::len)).collect();
        assert_eq!(lengths, [OBJECT_LIMIT - 100, OBJECT_LIMIT - 100, 0, 0, 0, 1]);
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"online": true, "count": 3}});
        let column = |kind: &str, path: &str| PrinterColumn {
            kind: kind.into(),
            source: CellSource::Path(Path::parse_plain(path).unwrap()),
            ..PrinterColumn::name()
        };
        let columns = [
            PrinterColumn::name(),
            column("string", ".spec.online"),
            column("boolean", ".spec.online"),
            column("integer", ".spec.count"),
            column("integer", ".spec.online"),
            column("string", ".spec.none"),
            column("date", ".metadata.creationTimestamp"),
        ];
        assert_eq!(cells(&columns, &object, now), json!(["a", "true", true, 3, null, null, "10m"]));
    }
}
