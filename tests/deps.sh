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
# Ubuntu 24.04's MPICH starts ranks that don't see each other (https://bugs.launchpad.net/bugs/2072338): one rank works.
broken_mpich() {
    [ "$(dpkg-query -W -f '${Version}' libmpich12 2>/dev/null)" = 4.2.0-5build3 ] || return 0
    echo "note: this distribution's MPICH 4.2.0-5build3 is broken: under mpiexec each rank is alone. The repaired packages"
    echo "mpich and libmpich12 4.2.0-5.1 are at https://launchpad.net/ubuntu/+source/mpich/4.2.0-5.1 (\"Builds\"); fetch"
    echo "both for this machine, then: sudo dpkg -i libmpich12_*.deb mpich_*.deb"
}
[ -n "$packages" ] || { broken_mpich; exit 0; }

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
broken_mpich
