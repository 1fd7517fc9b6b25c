#!/bin/sh
# Installs what is missing to build and test, from Debian's or Ubuntu's packages. Does nothing where all is there.
set -eu

packages=""
need() {                # need PACKAGE COMMAND...: the package, unless the command succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || packages="$packages $package"
}
header() {
    printf '#include <%s>\n' "$1" | cc -E - 
}
installed() {
    ls /usr/lib/*/"$1"
}
need build-essential command -v cc
need build-essential command -v make
need mpich command -v mpiexec
need libmpich-dev command -v mpicc
need libopenblas-openmp-dev installed openblas-openmp/libopenblas.so
need libcjson-dev header cjson/cJSON.h
need libcmocka-dev installed libcmocka.so
need gnuplot-nox command -v gnuplot
[ -z "$packages" ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "Missing (by the names of Debian's packages):$packages"
    echo "Install them with your system's package manager, then try again."
    exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Missing:$packages. As root: apt-get install$packages"; exit 1; }
    sudo=sudo
fi
echo "installing$packages"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null

# Ubuntu 24.04's MPICH 4.2.0-5build3 starts ranks that don't see each other.
if mpiexec -n 2 true 2>/dev/null && mpichversion 2>/dev/null | grep -q '4\.2\.0'; then
    echo "note: if programs under mpiexec say that each rank is in a world of one, this distribution's MPICH is the"
    echo "broken 4.2.0-5build3; a later one is in the distribution's next release."
fi
