//! BareMetalHosts as a rack has them: an inspected two-socket server with four network ports and ten disks.

use bytes::Bytes;
use serde_json::{Value, json};

/// What /proc/cpuinfo of such a machine says.
const FLAGS: &str = "3dnowprefetch abm acpi adx aes aperfmperf apic arat arch_perfmon art avx avx2 avx512_bitalg avx512_vbmi2 \
    avx512_vnni avx512_vpopcntdq avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl bmi1 bmi2 bts cat_l3 cdp_l3 \
    clflush clflushopt clwb cmov constant_tsc cpuid cqm cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc cx16 cx8 dca de \
    ds_cpl dtes64 dtherm dts epb ept ept_ad erms est f16c flexpriority flush_l1d fma fpu fsgsbase fsrm fxsr gfni hle ht \
    ibpb ibrs ibrs_enhanced ida intel_pt invpcid la57 lahf_lm lm mba mca mce md_clear mmx monitor movbe msr mtrr nonstop_tsc \
    nopl nx ospke pae pat pbe pcid pclmulqdq pconfig pdcm pdpe1gb pebs pge pku pln pni popcnt pse pse36 pts rdpid rdrand \
    rdseed rdt_a rdtscp rep_good rtm sdbg sep sha_ni smap smep split_lock_detect ss ssbd sse sse2 sse4_1 sse4_2 ssse3 stibp \
    syscall tm tm2 tme tpr_shadow tsc tsc_adjust tsc_deadline_timer tsc_known_freq umip vaes vme vmx vnmi vpclmulqdq vpid \
    wbnoinvd x2apic xgetbv1 xsave xsavec xsaveopt xsaves xtopology xtpr";

pub fn name(number: usize) -> String {
    format!("rack{:02}-node{:03}", number / 100, number % 100)
}

/// The body of its creation, and the patch of its status.
pub fn host(number: usize) -> (Bytes, Bytes) {
    let name = name(number);
    let mac =
        |port: usize| format!("52:54:{:02x}:{:02x}:{:02x}:{port:02x}", number >> 16, (number >> 8) & 255, number & 255);
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {
            "name": name,
            "labels": {"rack": format!("rack{:02}", number / 100), "role": if number.is_multiple_of(20) { "control-plane" } else { "worker" }},
            // Nobody is to drive machines that are not there.
            "annotations": {"baremetalhost.metal3.io/paused": ""},
        },
        "spec": {
            "online": true, "bootMACAddress": mac(0), "bootMode": "UEFI", "architecture": "x86_64",
            "bmc": {
                "address": format!("redfish-virtualmedia://10.{}.{}.1/redfish/v1/Systems/System.Embedded.1", number / 250, number % 250),
                "credentialsName": format!("{name}-bmc-secret"), "disableCertificateVerification": true,
            },
            "rootDeviceHints": {"wwn": "0x5000c500a1b2c3d4", "minSizeGigabytes": 400},
            "image": {
                "url": "http://172.22.0.1/images/debian-12-generic-amd64-20260101-1977.qcow2",
                "checksum": "http://172.22.0.1/images/debian-12-generic-amd64-20260101-1977.qcow2.sha256sum",
                "checksumType": "sha256", "format": "qcow2",
            },
            "userData": {"name": format!("{name}-user-data"), "namespace": "default"},
            "consumerRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3Machine", "name": format!("{name}-m"), "namespace": "default"},
        },
    });
    let nics: Vec<Value> = (0..4)
        .map(|port| json!({"name": format!("ens{port}f0np0"), "model": "0x15b3 0x1017", "mac": mac(port), "ip": format!("10.20.{port}.{}", number % 250),
            "speedGbps": 25, "pxe": port == 0, "vlanId": 0}))
        .collect();
    let disks: Vec<Value> = (0..10)
        .map(|disk| json!({"name": format!("/dev/disk/by-path/pci-0000:65:00.0-scsi-0:2:{disk}:0"), "type": "SSD", "rotational": false,
            "sizeBytes": 960_197_124_096_u64, "vendor": "ATA", "model": "MZ7LH960HAJR0D3", "serialNumber": format!("S45NNA0N{number:06}{disk}"),
            "wwn": format!("0x500253{number:08x}{disk:02x}"), "hctl": format!("0:2:{disk}:0"),
            "alternateNames": [format!("/dev/sd{}", char::from(b'a' + disk as u8)), format!("/dev/disk/by-id/wwn-0x500253{number:08x}{disk:02x}")]}))
        .collect();
    let status = json!({"status": {
        "operationalStatus": "OK", "errorMessage": "", "errorCount": 0, "poweredOn": true,
        "hardware": {
            "hostname": name, "ramMebibytes": 524_288, "nics": nics, "storage": disks,
            "cpu": {"arch": "x86_64", "model": "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", "clockMegahertz": 3200, "count": 128,
                "flags": FLAGS.split_whitespace().collect::<Vec<_>>()},
            "firmware": {"bios": {"date": "09/13/2025", "vendor": "Dell Inc.", "version": "1.12.1"}},
            "systemVendor": {"manufacturer": "Dell Inc.", "productName": "PowerEdge R750 (SKU=090E;ModelName=PowerEdge R750)", "serialNumber": format!("SN{number:06}")},
        },
        "provisioning": {"state": "provisioned", "ID": format!("00000000-0000-4000-8000-{number:012}")},
    }});
    (Bytes::from(host.to_string()), Bytes::from(status.to_string()))
}
