//! Processors, from procfs and cpufreq.

use std::path::Path;

use crate::api::metal3::Cpu;

/// Reads `proc/cpuinfo` and the highest clock that cpufreq names.
pub fn read(root: &Path) -> Cpu {
    let cpuinfo = std::fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let highest = std::fs::read_to_string(root.join("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")).ok();
    parse(&cpuinfo, highest.and_then(|text| text.trim().parse().ok()), std::env::consts::ARCH)
}

/// `kilohertz` is the highest clock; without it the fastest processor of the moment counts.
fn parse(cpuinfo: &str, kilohertz: Option<f64>, arch: &str) -> Cpu {
    let fields =
        || cpuinfo.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key.trim(), value.trim()));
    let first = |names: &[&str]| {
        fields().find(|(key, value)| names.contains(key) && !value.is_empty()).map(|(_, value)| value.to_owned())
    };
    let now = fields().filter(|(key, _)| *key == "cpu MHz").filter_map(|(_, value)| value.parse::<f64>().ok());
    let megahertz = match kilohertz {
        Some(kilohertz) => kilohertz / 1000.0,
        None => now.fold(0.0, f64::max),
    };
    // x86 calls them flags, Arm calls them Features.
    let flags = first(&["flags", "Features"]).unwrap_or_default();
    let mut flags: Vec<String> = flags.split_ascii_whitespace().map(str::to_owned).collect();
    flags.sort();
    flags.dedup();
    Cpu {
        arch: arch.to_owned(),
        model: first(&["model name", "Model"]).unwrap_or_default(),
        clock_megahertz: if megahertz.is_finite() { megahertz.round() } else { 0.0 },
        flags,
        count: fields().filter(|(key, _)| *key == "processor").count() as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6130\n\
                       cpu MHz\t\t: 1000.250\nflags\t\t: vmx fpu sse fpu\n\nprocessor\t: 1\n\
                       model name\t: Intel(R) Xeon(R) Gold 6130\ncpu MHz\t\t: 2100.700\nflags\t\t: fpu vmx\n";

    #[test]
    fn reads_x86() {
        let cpu = parse(X86, Some(3_700_000.0), "x86_64");
        assert_eq!(cpu.model, "Intel(R) Xeon(R) Gold 6130");
        assert_eq!((cpu.count, cpu.clock_megahertz, cpu.arch.as_str()), (2, 3700.0, "x86_64"));
        assert_eq!(cpu.flags, ["fpu", "sse", "vmx"]);
        assert_eq!(parse(X86, None, "x86_64").clock_megahertz, 2101.0);
    }

    #[test]
    fn reads_arm_and_nothing() {
        let cpu = parse("processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n", None, "aarch64");
        assert_eq!((cpu.count, cpu.clock_megahertz), (1, 0.0));
        assert_eq!(cpu.flags, ["asimd", "fp"]);
        assert_eq!(parse("", None, "x86_64"), Cpu { arch: "x86_64".into(), ..Cpu::default() });
        assert_eq!(parse("cpu MHz: NaN\ncpu MHz: inf\n", None, "x86_64").clock_megahertz, 0.0);
    }
}
