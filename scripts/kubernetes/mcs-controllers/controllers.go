// Package controllers replaces sigs.k8s.io/mcs-api/controllers, which not every Go module proxy has.
// It declares the only name of that package that Cilium uses.
package controllers

// DerivedServiceAnnotation is the annotation of a ServiceImport with the name of its Service.
const DerivedServiceAnnotation = "multicluster.kubernetes.io/derived-service"
