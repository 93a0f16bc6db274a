//! The chart that installs the controller, as a package (<https://helm.sh/docs/topics/charts/>).

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Name of the chart.
pub const CHART_NAME: &str = "helm-controller";
/// Where the version of this program goes.
const VERSION: &str = "0.0.0";
/// The chart's files.
const FILES: [(&str, &str); 3] = [
    ("Chart.yaml", include_str!("helm-controller/Chart.yaml")),
    ("values.yaml", include_str!("helm-controller/values.yaml")),
    ("templates/controller.yaml", include_str!("helm-controller/templates/controller.yaml")),
];

/// Writes the chart as a package, of this version, the same bytes each time. Its file is to be named `helm-controller-VERSION.tgz`.
///
/// # Errors
/// What writing gives.
pub fn package(version: &str, out: impl Write) -> io::Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(out, Compression::best()));
    for (path, text) in FILES {
        let text = if path == "Chart.yaml" { text.replace(VERSION, version) } else { text.to_owned() };
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("{CHART_NAME}/{path}"), text.as_bytes())?;
    }
    tar.into_inner()?.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_package_has_the_version_and_is_the_same_each_time() {
        let made = |version: &str| {
            let mut out = Vec::new();
            package(version, &mut out).unwrap();
            out
        };
        let one = made("1.2.3");
        assert_eq!(one, made("1.2.3"));
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&one[..]));
        let mut names = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            assert!(!name.ends_with("Chart.yaml") || text.contains("version: 1.2.3\nappVersion: 1.2.3"), "{text}");
            names.push(name);
        }
        assert_eq!(names.len(), FILES.len());
    }
}
