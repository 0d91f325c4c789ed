# shellcheck shell=sh
# Prints what this host says about its GPUs and their driver, as one JSON object. Reads only.
# observe.sh SYSFS ETC RUN KERNEL DEV
# sysfs: Documentation/ABI/testing/sysfs-bus-pci; PCI class 0x0300 is VGA, 0x0302 is 3D, 0x0680 an NVSwitch.
sysfs=$1 etc=$2 run=$3 kernel=$4 dev=$5

read_file() { [ -r "$1" ] && IFS= read -r line <"$1" && printf %s "$line"; }
yes_if() { if "$@" >/dev/null 2>&1; then printf true; else printf false; fi; }
owner_of() { dpkg-query -S "$1" 2>/dev/null || rpm -qf "$1" 2>/dev/null; }
as_list() { awk '{ printf "%s\"%s\"", (NR > 1 ? ", " : ""), $0 }'; }

gpus() {
  separator=
  for device in "$sysfs"/bus/pci/devices/*; do
    [ "$(read_file "$device/vendor")" = 0x10de ] || continue
    case $(read_file "$device/class") in 0x0300* | 0x0302*) ;; *) continue ;; esac
    [ -L "$device/physfn" ] && continue # a virtual function of a GPU that is counted already
    driver=$(readlink "$device/driver") || driver=
    printf '%s{"address": "%s", "device": "%s", "driver": "%s"}' \
      "$separator" "${device##*/}" "$(read_file "$device/device")" "${driver##*/}"
    separator=', '
  done
}
nvswitch() {
  for device in "$sysfs"/bus/pci/devices/*; do
    [ "$(read_file "$device/vendor")" = 0x10de ] || continue
    case $(read_file "$device/class") in 0x0680*) return 0 ;; esac
  done
  return 1
}

# Debian's modules have names of their own, which modprobe's configuration maps.
of_module() {
  for name in nvidia nvidia-current nvidia-current-open; do
    modinfo -k "$kernel" -F "$1" "$name" 2>/dev/null && return
  done
}
# Installed packages that make up a driver, one "want name version maintainer" a line. Their versions begin with a branch, as those of the
# container toolkit and of CUDA do not, or are those of the kernel that Ubuntu built modules for.
deb_packages() {
  dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package} ${Version} ${Maintainer}\n' \
    'nvidia-*' 'libnvidia-*' 'libcuda1*' 'cuda-drivers*' 'linux-*-nvidia-*' 'firmware-nvidia-*' 2>/dev/null |
    awk '$2 == "installed" { $2 = ""; print }'
}
rpm_packages() {
  rpm -qa --qf 'install %{NAME} %{VERSION} %{VENDOR}\n' 'nvidia-*' 'libnvidia-*' 'kmod-nvidia-*' 'akmod-nvidia*' 'cuda-drivers*' 2>/dev/null
}
found=$(deb_packages; rpm_packages)
packages=$(printf '%s\n' "$found" | awk '($3 ~ /^([0-9]+:)?[0-9][0-9][0-9][.][0-9]/ && $2 !~ /-pinning-/) || $2 ~ /^linux-(modules|objects|signatures)-nvidia-/')
vendor() { # who built the packages; NVIDIA's specifications of its RPMs name no vendor, and whatever builds for a distribution does
  [ -n "$packages" ] || return
  if printf %s "$packages" | grep -qiE 'nvidia corporation|@nvidia[.]com| nvidia$| [(]none[)]$'; then printf nvidia; else printf distribution; fi
}
held() {
  printf '%s\n' "$packages" | awk '$1 == "hold" { print $2 }'
  # name-epoch:version-release.*
  sed -n 's/^\([a-z][^#]*\)-[0-9]*:.*/\1/p' "$etc/dnf/plugins/versionlock.list" 2>/dev/null | while read -r name; do
    printf '%s\n' "$packages" | awk -v name="$name" '$2 == name { print name }'
  done
}
fabric_manager() { nv-fabricmanager --version 2>/dev/null | sed -n 's/.*[^0-9.]\([0-9]*\(\.[0-9][0-9]*\)\{1,\}\).*/\1/p' | head -n 1; }

uninstaller=$(command -v nvidia-uninstall)
secure_boot() { # the fifth byte of the variable
  od -An -t u1 -j 4 -N 1 "$sysfs"/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null | grep -q 1
}
key_enrolled() { # the one DKMS signs with
  told=$(cat "$etc"/dkms/framework.conf "$etc"/dkms/framework.conf.d/*.conf 2>/dev/null | sed -n "s/^mok_certificate=[\"']\{0,1\}\([^\"']*\).*/\1/p")
  for key in $told /var/lib/shim-signed/mok/MOK.der /var/lib/dkms/mok.pub; do
    [ -e "$key" ] && mokutil --test-key "$key" 2>&1 | grep -q 'already enrolled' && return
  done
  return 1
}
runfile_installed() { [ -n "$uninstaller" ] && ! owner_of "$uninstaller"; }
non_free() { grep -rsqE '(^|[[:space:]])non-free([[:space:]]|$)' "$etc/apt/sources.list" "$etc/apt/sources.list.d"; }
blacklisted() { cat "$etc"/modprobe.d/*.conf /usr/lib/modprobe.d/*.conf 2>/dev/null | grep -q '^blacklist nouveau'; }
persistence_unit() { grep -qs 'Written by accel.kubernetes.driver' "$etc/systemd/system/nvidia-persistenced.service"; }
# "MODE SHA256" of a file. That of a link is the link's mode, which no file of ours has.
content_of() { [ -f "$1" ] && printf '%s %s' "$(stat -c %a "$1")" "$(sha256sum <"$1" | cut -d ' ' -f 1)"; }
initramfs() { test -e "/boot/initrd.img-$kernel" || test -e "/boot/initramfs-$kernel.img"; }
free_space() { # of the file systems an installation writes to
  for path in /usr /var /boot /tmp; do
    df -Pk "$path" 2>/dev/null | awk -v path="$path" 'NR == 2 { printf "%s {\"mount\": \"%s\", \"mib\": %d}\n", path, $6, $4 / 1024 }'
  done | awk '{ printf "%s\"%s\":", (NR > 1 ? ", " : ""), $1; $1 = ""; printf "%s", $0 }'
}

cat <<JSON
{
  "gpus": [$(gpus)],
  "nvswitch": $(yes_if nvswitch),
  "loaded": "$(read_file "$sysfs/module/nvidia/version")",
  "taint": "$(read_file "$sysfs/module/nvidia/taint")",
  "installed": "$(of_module version)",
  "license": "$(of_module license)",
  "vermagic": "$(of_module vermagic)",
  "nouveau": $(yes_if test -e "$sysfs/module/nouveau"),
  "blacklisted": $(yes_if blacklisted),
  "secure_boot": $(yes_if secure_boot),
  "key_enrolled": $(yes_if key_enrolled),
  "dgx": $(yes_if test -e "$etc/dgx-release"),
  "operator": $(yes_if test -e "$run/nvidia/driver/usr"),
  "runfile": $(yes_if runfile_installed),
  "packages": [$(printf '%s\n' "$packages" | awk 'NF { print $2 }' | as_list)],
  "pinning": [$(printf '%s\n' "$found" | awk '$2 ~ /^nvidia-driver-pinning-/ { print $2 }' | as_list)],
  "vendor": "$(vendor)",
  "held": [$(held | as_list)],
  "fabric_manager": "$(fabric_manager)",
  "persistence_unit": $(yes_if persistence_unit),
  "boot_modules": "$(content_of "$etc/modules-load.d/accel-nvidia.conf")",
  "device_files": $(yes_if test -e "$dev/nvidia-uvm"),
  "non_free": $(yes_if non_free),
  "keyring": $(yes_if test -e /usr/share/keyrings/cuda-archive-keyring.gpg),
  "initramfs": $(yes_if initramfs),
  "free": {$(free_space)},
  "stream": "$(sed -n 's/^stream=//p' "$etc/dnf/modules.d/nvidia-driver.module" 2>/dev/null)"
}
JSON
