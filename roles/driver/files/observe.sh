# Prints what this host says about its GPUs and their driver, as one JSON object. Reads only.
# observe.sh SYSFS ETC RUN KERNEL
# sysfs: Documentation/ABI/testing/sysfs-bus-pci; PCI class 0x0300 is VGA, 0x0302 is 3D.
sysfs=$1 etc=$2 run=$3 kernel=$4

read_file() { [ -r "$1" ] && IFS= read -r line <"$1" && printf %s "$line"; }
yes_if() { if "$@" >/dev/null 2>&1; then printf true; else printf false; fi; }
owner_of() { dpkg-query -S "$1" 2>/dev/null || rpm -qf "$1" 2>/dev/null; }

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

uninstaller=$(command -v nvidia-uninstall)
secure_boot() { # the fifth byte of the variable
  od -An -t u1 -j 4 -N 1 "$sysfs"/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c 2>/dev/null | grep -q 1
}
runfile_installed() { [ -n "$uninstaller" ] && ! owner_of "$uninstaller"; }
package_installed() { smi=$(command -v nvidia-smi) && owner_of "$smi"; }
non_free() { grep -rsqE '(^|[[:space:]])non-free([[:space:]]|$)' "$etc/apt/sources.list" "$etc/apt/sources.list.d"; }

cat <<JSON
{
  "gpus": [$(gpus)],
  "loaded": "$(read_file "$sysfs/module/nvidia/version")",
  "installed": "$(modinfo -k "$kernel" -F version nvidia 2>/dev/null)",
  "license": "$(modinfo -k "$kernel" -F license nvidia 2>/dev/null)",
  "nouveau": $(yes_if test -e "$sysfs/module/nouveau"),
  "secure_boot": $(yes_if secure_boot),
  "dgx": $(yes_if test -e "$etc/dgx-release"),
  "operator": $(yes_if test -e "$run/nvidia/driver/usr"),
  "runfile": $(yes_if runfile_installed),
  "package": $(yes_if package_installed),
  "non_free": $(yes_if non_free),
  "stream": "$(sed -n 's/^stream=//p' "$etc/dnf/modules.d/nvidia-driver.module" 2>/dev/null)"
}
JSON
