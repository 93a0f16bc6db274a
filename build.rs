//! What the binary brings in packed form, and how the static binary is linked.

use std::io::Write;
use std::path::Path;

/// The schemas of the kinds, each written by a test beside it.
const SCHEMAS: [&str; 2] = ["src/api/definitions.json", "src/apiserver/core_schemas.json"];

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
    Ok(())
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
