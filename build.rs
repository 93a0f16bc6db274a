//! What the binary brings in packed form, how the static binary is linked, and of which source it says that it is.

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The schemas of the kinds, each written by a test beside it.
const SCHEMAS: [&str; 2] = ["src/api/definitions.json", "src/apiserver/kinds/core_schemas.json"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR")?;
    for file in SCHEMAS {
        println!("cargo::rerun-if-changed={file}");
        pack(Path::new(file), Path::new(&out))?;
    }
    // 70,000 addresses are relocated at every start. Their list stays in memory; packed it has 19 kB and not 1.7 MB.
    // A static binary brings the libc that can read it.
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // Of a release only: for others, everything would be compiled anew after each commit.
    tell_origin(Path::new(&out).components().any(|part| part.as_os_str() == "release"));
    Ok(())
}

/// Commit and time of the source: what $SLIPWAY_COMMIT and $SOURCE_DATE_EPOCH say, else what Git knows of this folder. The clock
/// is not asked, so that the same source makes the same binary. Without Git, as in a tarball, nothing is told.
fn tell_origin(ask_git: bool) {
    for name in ["SLIPWAY_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let given = |name: &str| std::env::var(name).ok().map(|value| value.trim().to_owned());
    let is_commit = |text: &String| (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_time = |text: &String| text.parse::<u32>().is_ok();
    let known = if ask_git { of_git() } else { None };
    let (commit, time) = known.unzip();
    if let Some(commit) = given("SLIPWAY_COMMIT").filter(is_commit).or(commit) {
        println!("cargo::rustc-env=SLIPWAY_BUILD_COMMIT={commit}");
    }
    if let Some(time) = given("SOURCE_DATE_EPOCH").filter(is_time).or(time) {
        println!("cargo::rustc-env=SLIPWAY_BUILD_TIME={time}");
    }
}

/// The commit that this folder is at, and its time. None where something in it is other than that.
fn of_git() -> Option<(String, String)> {
    let here = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(["--no-optional-locks", "-C"]).arg(&here).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_owned())
    };
    // A tarball that was unpacked in somebody's repository is none of it.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if std::fs::canonicalize(top).ok()? != std::fs::canonicalize(&here).ok()? {
        return None;
    }
    for file in ["logs/HEAD", "HEAD"] {
        let path = Path::new(&here).join(git(&["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.lock");
    if !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
        return None;
    }
    Some((git(&["rev-parse", "HEAD"])?, git(&["show", "--no-patch", "--format=%ct", "HEAD"])?))
}

/// Half a megabyte of text that is read once at each start is a twentieth of that in the binary and in memory.
fn pack(file: &Path, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let name = file.file_name().and_then(|name| name.to_str()).ok_or("a file without a name")?;
    let packed = std::fs::File::create(folder.join(format!("{name}.zz")))?;
    let mut packed = flate2::write::ZlibEncoder::new(packed, flate2::Compression::best());
    packed.write_all(&std::fs::read(file)?)?;
    packed.finish()?;
    Ok(())
}
